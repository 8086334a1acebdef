import { statement } from '../statement.ts'
import { MOVED, MOVED_R } from './runs.ts'

/**
 * Takes a maximum. Assigned runs whose lease lapsed before they started go to the next worker that asks. A run that
 * workers hold is its job's latest: saying so leads to the index by state. By the order of ids all runs would be read.
 */
export const orphanRuns = statement('orphan_runs', {
  postgres: `WITH c AS MATERIALIZED (
      SELECT id FROM ichido.runs WHERE state = 'ASSIGNED' AND latest AND lease_expires_at < now_ms()
      ORDER BY job_id LIMIT $1 FOR UPDATE SKIP LOCKED)
    UPDATE ichido.runs r SET state = 'ORPHANED', version = r.version + 1, last_event_n = r.last_event_n + 1
    FROM c WHERE r.id = c.id RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = 'ORPHANED', version = version + 1, last_event_n = last_event_n + 1
    WHERE id IN (SELECT id FROM ichido.runs WHERE state = 'ASSIGNED' AND latest AND lease_expires_at < now_ms() LIMIT $1)
    RETURNING ${MOVED}`,
})

/**
 * Takes a maximum, the continuation time in ms of jobs that do not set their own, and the error to record. Ends running
 * runs whose worker has not been heard of for the lease and the continuation time: by then it has stopped by itself.
 */
export const expireRuns = statement('expire_runs', {
  postgres: `WITH c AS MATERIALIZED (
      SELECT r.id FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
      WHERE r.state = 'RUNNING' AND r.latest
        AND r.lease_expires_at + coalesce((j.policy::json ->> 'continuation_seconds')::bigint * 1000, $2::bigint) < now_ms()
      ORDER BY r.job_id LIMIT $1 FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET state = CASE WHEN r.cancel_requested_at IS NULL THEN 'TIMED_OUT' ELSE 'CANCELED' END,
      version = r.version + 1, finished_at = now_ms(), error = $3, last_event_n = r.last_event_n + 1
    FROM c WHERE r.id = c.id RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = CASE WHEN cancel_requested_at IS NULL THEN 'TIMED_OUT' ELSE 'CANCELED' END,
      version = version + 1, finished_at = now_ms(), error = $3, last_event_n = last_event_n + 1
    WHERE id IN (
      SELECT r.id FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
      WHERE r.state = 'RUNNING' AND r.latest
        AND r.lease_expires_at + coalesce(json_extract(j.policy, '$.continuation_seconds') * 1000, $2) < now_ms()
      LIMIT $1)
    RETURNING ${MOVED}`,
})

/** Takes the beginning of worker ids. Ends their leases at once: the process that they lived in is known to be gone. */
export const forsakeRuns = statement(
  'forsake_runs',
  `UPDATE ichido.runs SET lease_expires_at = 0
    WHERE state IN ('ASSIGNED', 'RUNNING') AND assigned_worker_id LIKE $1 || '%' RETURNING id`,
)
