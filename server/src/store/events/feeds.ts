import type { RunState } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, type Work } from '../statement.ts'
import * as sql from './feeds.sql.ts'

export interface FeedEnd {
  state: RunState
  lastN: number
}

/** Of many jobs at once; those that are gone are left out. */
export function findFeedEnds(jobIds: readonly string[]): Command<Map<string, FeedEnd>> {
  return command('find_feed_ends', function* work(): Work<Map<string, FeedEnd>> {
    const rows = yield* each(
      sql.readFeedEnds,
      jobIds.map((job_id) => ({ job_id })),
    )
    return new Map(rows.map((row) => [row.job_id, { state: row.state, lastN: row.last_event_n }]))
  })
}

/** Null when no event of the job has this seq. */
export function findCursorOfSeq(jobId: string, seq: number): Command<number | null> {
  return command('find_cursor_of_seq', function* work(): Work<number | null> {
    return (yield* exactlyOne(sql.readCursorOfSeq, { job_id: jobId, seq })).n
  })
}
