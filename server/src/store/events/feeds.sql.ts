import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/** Takes jobs: how those that are still there stand, and the numbers of their last events. */
export const readFeedEnds = statement('read_feed_ends', {
  postgres: `SELECT r.job_id, r.state, r.last_event_n FROM unnest($1::uuid[]) AS t(job_id)
    JOIN ichido.jobs j ON j.id = t.job_id JOIN ichido.runs r ON r.job_id = t.job_id AND r.latest WHERE NOT ${EXPIRED}`,
  sqlite: `SELECT r.job_id, r.state, r.last_event_n FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $1 AND NOT ${EXPIRED}`,
})

/**
 * Takes job and seq. Where several stages have it, after the first of them: rather twice than not at all. Those of lifecycle
 * events count where workers have published none: they are the cursors, and the first one is told from the job.
 */
export const readCursorOfSeq = statement(
  'read_cursor_of_seq',
  `SELECT coalesce(
      (SELECT min(n) FROM ichido.events WHERE job_id = $1 AND seq = $2 AND stage <> 'run'),
      (SELECT n FROM ichido.events WHERE job_id = $1 AND n = $2 AND stage = 'run'),
      CASE WHEN CAST($2 AS bigint) = 1 THEN CAST(1 AS bigint) END) AS n`,
)
