import { statement } from '../statement.ts'

/**
 * For a process that is blocked and cannot say which leases it has: extends all leases of its workers. `lease_ttl_ms` is for
 * jobs without a lease time of their own. Guards worker and state.
 */
export const heartbeatWorkers = statement('heartbeat_workers', {
  params: { worker_id: 'text', lease_ttl_ms: 'integer' },
  row: { id: 'text' },
  postgres: `WITH t AS MATERIALIZED (
      SELECT id FROM ichido.runs WHERE assigned_worker_id = ANY($worker_id::text[]) AND state IN ('ASSIGNED', 'RUNNING')
      ORDER BY id FOR UPDATE)
    UPDATE ichido.runs r SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = greatest(r.lease_expires_at, now_ms() + coalesce(r.lease_ttl_ms, $lease_ttl_ms::bigint))
    FROM t WHERE r.id = t.id AND r.assigned_worker_id = ANY($worker_id::text[]) AND r.state || '' IN ('ASSIGNED', 'RUNNING')
    RETURNING r.id`,
  // One process has the folder: who is held up holds up everybody who could take its jobs.
  sqlite: `UPDATE ichido.runs SET lease_expires_at = lease_expires_at + $lease_ttl_ms WHERE assigned_worker_id = $worker_id AND false
    RETURNING id`,
})
