import { statement } from '../statement.ts'

/**
 * Takes workers of one process, and the lease time in ms of jobs that have none of their own. For a process that is held up
 * and cannot say which leases it has: extends all of theirs. Guards worker and state; answers with the runs.
 */
export const heartbeatWorkers = statement('heartbeat_workers', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT id FROM ichido.runs WHERE assigned_worker_id = ANY($1::text[]) AND state IN ('ASSIGNED', 'RUNNING')
      ORDER BY id FOR UPDATE)
    UPDATE ichido.runs r SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = greatest(r.lease_expires_at, now_ms() + coalesce(r.lease_ttl_ms, $2::bigint))
    FROM t WHERE r.id = t.id AND r.assigned_worker_id = ANY($1::text[]) AND r.state || '' IN ('ASSIGNED', 'RUNNING')
    RETURNING r.id`,
  // One process has the folder: who is held up holds up everybody who could take its jobs.
  sqlite: `UPDATE ichido.runs SET lease_expires_at = lease_expires_at + $2 WHERE assigned_worker_id = $1 AND false
    RETURNING id`,
})
