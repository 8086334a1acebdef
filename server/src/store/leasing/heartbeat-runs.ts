import type { RunRefusal } from '../../core/run/run-state.ts'
import { type Command, commandIn } from '../port.ts'
import { explainRefusal, factsOf, foldBy } from '../runs/run-facts.ts'
import { GUARD, HELD, SORTED } from '../runs/runs.sql.ts'
import { each, statement, type Work } from '../statement.ts'

/**
 * `ttl_ms` is for runs without a lease time of their own. The version stays, because a running start compares it.
 */
export const heartbeatRuns = statement('heartbeat_runs', {
  params: { run_id: 'text', worker_id: 'text', lease_id: 'text', ttl_ms: 'integer' },
  row: {
    lease_id: 'text',
    worker_id: 'text',
    lease_expires_at: 'integer',
    cancel_requested_at: 'integer?',
    ttl_ms: 'integer',
  },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $worker_id::text[], $lease_id::text[], $ttl_ms::bigint[]) AS t(run_id, worker_id, lease_id, ttl_ms)
      ${SORTED})
    UPDATE ichido.runs r SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = now_ms() + coalesce(r.lease_ttl_ms, t.ttl_ms)
    FROM t WHERE r.id = t.run_id AND r.state || '' IN ('ASSIGNED', 'RUNNING') AND ${GUARD}
    RETURNING r.lease_id, r.assigned_worker_id AS worker_id, r.lease_expires_at, r.cancel_requested_at,
      coalesce(r.lease_ttl_ms, t.ttl_ms) AS ttl_ms`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = now_ms() + coalesce(lease_ttl_ms, $ttl_ms)
    WHERE ${HELD} AND state IN ('ASSIGNED', 'RUNNING')
    RETURNING lease_id, assigned_worker_id AS worker_id, lease_expires_at, cancel_requested_at,
      coalesce(lease_ttl_ms, $ttl_ms) AS ttl_ms`,
})

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
  // One process has the folder: while it is blocked, no other process can take its jobs.
  sqlite: `UPDATE ichido.runs SET lease_expires_at = lease_expires_at + $lease_ttl_ms WHERE assigned_worker_id = $worker_id AND false
    RETURNING id`,
})

export interface HeartbeatItem {
  runId: string
  workerId: string
  leaseId: string
  leaseTtlMs: number
}

export type HeartbeatOutcome =
  | { kind: 'extended'; leaseExpiresAtMs: number; leaseTtlMs: number; cancelRequested: boolean }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

export function heartbeatBatch(items: readonly HeartbeatItem[]): Command<HeartbeatOutcome[]> {
  return commandIn('urgent', 'heartbeat', function* work(): Work<HeartbeatOutcome[]> {
    const { firsts } = foldBy(items, leaseOf)
    const rows = yield* each(
      heartbeatRuns,
      firsts.map((item) => ({
        run_id: item.runId,
        worker_id: item.workerId,
        lease_id: item.leaseId,
        ttl_ms: item.leaseTtlMs,
      })),
    )
    // A run has one lease that can be extended: every item that names this lease is answered.
    const extended = new Map(rows.map((row) => [JSON.stringify([row.lease_id, row.worker_id]), row]))
    const missed = firsts.filter((item) => !extended.has(leaseOf(item)))
    const facts = yield* factsOf(missed)
    return items.map((item): HeartbeatOutcome => {
      const row = extended.get(leaseOf(item))
      if (row !== undefined) {
        return {
          kind: 'extended',
          leaseExpiresAtMs: row.lease_expires_at,
          leaseTtlMs: row.ttl_ms,
          cancelRequested: row.cancel_requested_at !== null,
        }
      }
      const reason = explainRefusal(facts.get(item.runId), { verb: 'heartbeat', ...item })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    })
  })
}

const leaseOf = ({ leaseId, workerId }: HeartbeatItem) => JSON.stringify([leaseId, workerId])
