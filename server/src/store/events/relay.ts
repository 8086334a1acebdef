import { type Command, command } from '../port.ts'
import { integer, one, query, type Row, text, type Work } from '../statement.ts'
import { fence, type Term } from '../system/leadership.ts'
import * as sql from './relay.sql.ts'
import { type EventPlace, findLastPlace } from './walk-events.ts'

/** Where the watermark was at an instant of the store's clock. */
export interface Checkpoint {
  atMs: number
  tx: number
}

export interface Watermark {
  place: EventPlace
  /** Oldest first. */
  checkpoints: readonly Checkpoint[]
}

/** Whoever begins to relay does not begin with all that ever happened, but with what happens from now on. */
export function beginWatermark(): Command<Watermark> {
  return command('begin_watermark', function* work(again): Work<Watermark> {
    const found = yield* one(sql.readWatermark)
    if (found !== undefined) return toWatermark(found)
    const { tx, jobId, n } = yield* findLastPlace().work(again)
    yield* query(sql.addWatermark, tx, jobId, n)
    return toWatermark(yield* one(sql.readWatermark))
  })
}

function toWatermark(row: Row | undefined): Watermark {
  const place = { tx: integer(row, 'tx'), jobId: text(row, 'job_id'), n: integer(row, 'n') }
  return { place, checkpoints: JSON.parse(text(row, 'checkpoints')) as Checkpoint[] }
}

/** False when the term is over. */
export function moveWatermark(term: Term, { place, checkpoints }: Watermark): Command<boolean> {
  return command('move_watermark', function* work(): Work<boolean> {
    const { tx, jobId, n } = place
    const moved = yield* one(sql.setWatermark, ...fence(term), tx, jobId, n, JSON.stringify(checkpoints))
    return moved !== undefined
  })
}
