import { RUN_STATES } from '../../core/run/run-state.ts'
import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

export const readFeedEnds = statement('read_feed_ends', {
  params: { job_id: 'text' },
  row: { job_id: 'text', state: { oneOf: RUN_STATES }, last_event_n: 'integer' },
  postgres: `SELECT r.job_id, r.state, r.last_event_n FROM unnest($job_id::uuid[]) AS t(job_id)
    JOIN ichido.jobs j ON j.id = t.job_id JOIN ichido.runs r ON r.job_id = t.job_id AND r.latest WHERE NOT ${EXPIRED}`,
  sqlite: `SELECT r.job_id, r.state, r.last_event_n FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/**
 * Where several stages have the seq, finds the first of them: the reader gets events twice rather than not at all. The seq of a
 * lifecycle event is its cursor. It counts where no worker has published the seq. The first event is derived from the job.
 */
export const readCursorOfSeq = statement('read_cursor_of_seq', {
  params: { job_id: 'text', seq: 'integer' },
  row: { n: 'integer?' },
  sql: `SELECT coalesce(
      (SELECT min(n) FROM ichido.events WHERE job_id = $job_id AND seq = $seq AND stage <> 'run'),
      (SELECT n FROM ichido.events WHERE job_id = $job_id AND n = $seq AND stage = 'run'),
      CASE WHEN CAST($seq AS bigint) = 1 THEN CAST(1 AS bigint) END) AS n`,
})
