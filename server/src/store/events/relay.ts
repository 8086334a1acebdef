import { type Command, command } from '../port.ts'
import { exactlyOne, one, query, type RowOf, type Work } from '../statement.ts'
import type { Term } from '../system/leadership.ts'
import * as sql from './relay.sql.ts'
import { type EventPlace, findLastPlace } from './walk-events.ts'

export interface Watermark {
  place: EventPlace
  /** Oldest first. */
  checkpoints: readonly sql.Checkpoint[]
}

/** Whoever begins to relay does not begin with all that ever happened, but with what happens from now on. */
export function beginWatermark(): Command<Watermark> {
  return command('begin_watermark', function* work(again): Work<Watermark> {
    const found = yield* one(sql.readWatermark, {})
    if (found !== undefined) return toWatermark(found)
    const { tx, jobId, n } = yield* findLastPlace().work(again)
    yield* query(sql.addWatermark, { tx, job_id: jobId, n })
    return toWatermark(yield* exactlyOne(sql.readWatermark, {}))
  })
}

function toWatermark({ tx, job_id, n, checkpoints }: RowOf<typeof sql.readWatermark>): Watermark {
  return { place: { tx, jobId: job_id, n }, checkpoints }
}

/** False when the term is over. */
export function moveWatermark({ epoch, holder }: Term, { place, checkpoints }: Watermark): Command<boolean> {
  return command('move_watermark', function* work(): Work<boolean> {
    const { tx, jobId, n } = place
    const mark = { tx, job_id: jobId, n, checkpoints: JSON.stringify(checkpoints) }
    return (yield* one(sql.setWatermark, { epoch, holder, ...mark })) !== undefined
  })
}
