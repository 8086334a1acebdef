import { type Command, command } from '../port.ts'
import * as sql from '../sql/relay.ts'
import { integer, one, text, type Work } from '../statement.ts'
import type { EventPlace } from './all-events.ts'
import { fence, type Term } from './leadership.ts'

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

/** Null before anything was ever relayed. */
export function findWatermark(): Command<Watermark | null> {
  return command('find_watermark', function* work(): Work<Watermark | null> {
    const row = yield* one(sql.readWatermark)
    if (row === undefined) return null
    const place = { tx: integer(row, 'tx'), jobId: text(row, 'job_id'), n: integer(row, 'n') }
    return { place, checkpoints: JSON.parse(text(row, 'checkpoints')) as Checkpoint[] }
  })
}

/** False when the term is over. */
export function moveWatermark(term: Term, { place, checkpoints }: Watermark): Command<boolean> {
  return command('move_watermark', function* work(): Work<boolean> {
    const { tx, jobId, n } = place
    const moved = yield* one(sql.setWatermark, ...fence(term), tx, jobId, n, JSON.stringify(checkpoints))
    return moved !== undefined
  })
}
