import type { RunRefusal } from '../../core/run/run-state.ts'
import { type Command, commandIn } from '../port.ts'
import { explainRefusal, factsOf, foldBy, leaseIdOf, tokenOf } from '../runs/run-facts.ts'
import { HOLDER, HOLDS, HOLDS_SQLITE, IN_LOCK_ORDER, SORTED } from '../runs/runs.sql.ts'
import { each, statement, type Work } from '../statement.ts'

const EXTENDED = 'job_id, worker_id, token, lease_expires_at, lease_ttl_ms, cancel_requested_at'

/** The version stays, because a running start compares it. */
export const heartbeatRuns = statement('heartbeat_runs', {
  params: HOLDER,
  row: {
    job_id: 'text',
    worker_id: 'text',
    token: 'text',
    lease_expires_at: 'integer',
    lease_ttl_ms: 'integer',
    cancel_requested_at: 'integer?',
  },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($job_id::uuid[], $worker_id::text[], $token::text[]) AS t(job_id, worker_id, token) ${SORTED})
    UPDATE ichido.held r SET deadline_at = NULL, lease_expires_at = now_ms() + r.lease_ttl_ms
    FROM t WHERE ${HOLDS} RETURNING ${EXTENDED.replaceAll(/\w+/g, 'r.$&')}`,
  sqlite: `UPDATE ichido.held AS r SET deadline_at = NULL, lease_expires_at = now_ms() + lease_ttl_ms
    WHERE ${HOLDS_SQLITE} RETURNING ${EXTENDED}`,
})

/**
 * For a process that is blocked and cannot say which leases it has: extends all leases of its workers. It includes runs that the
 * leader has halted: their handlers still run, so no other worker may get the jobs.
 */
export const heartbeatWorkers = statement('heartbeat_workers', {
  params: { worker_id: 'text' },
  row: { job_id: 'text' },
  postgres: `WITH t AS MATERIALIZED (
      SELECT job_id FROM ichido.held WHERE worker_id = ANY($worker_id::text[]) ${IN_LOCK_ORDER} FOR UPDATE)
    UPDATE ichido.held r SET deadline_at = NULL, lease_expires_at = greatest(r.lease_expires_at, now_ms() + r.lease_ttl_ms)
    FROM t WHERE by_key(r.job_id, t.job_id) RETURNING r.job_id`,
  // One process has the folder: while it is blocked, no other process can take its jobs.
  sqlite: 'SELECT job_id FROM ichido.held WHERE worker_id = $worker_id AND false',
})

export interface HeartbeatItem {
  jobId: string
  workerId: string
  leaseId: string
}

export type HeartbeatOutcome =
  | { kind: 'extended'; leaseExpiresAtMs: number; leaseTtlMs: number; cancelRequested: boolean }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

export function heartbeatBatch(items: readonly HeartbeatItem[]): Command<HeartbeatOutcome[]> {
  return commandIn('urgent', 'heartbeat', function* work(): Work<HeartbeatOutcome[]> {
    const { firsts } = foldBy(items, leaseOf)
    const rows = yield* each(
      heartbeatRuns,
      firsts.map(({ jobId, workerId, leaseId }) => ({
        job_id: jobId,
        worker_id: workerId,
        token: tokenOf(leaseId),
      })),
    )
    // A run has one lease that can be extended: every item that names this lease is answered.
    const extended = new Map(rows.map((row) => [nameOf(leaseIdOf(row.job_id, row.token), row.worker_id), row]))
    const missed = firsts.filter((item) => !extended.has(leaseOf(item)))
    const facts = yield* factsOf(missed)
    return items.map((item): HeartbeatOutcome => {
      const row = extended.get(leaseOf(item))
      if (row !== undefined) {
        return {
          kind: 'extended',
          leaseExpiresAtMs: row.lease_expires_at,
          leaseTtlMs: row.lease_ttl_ms,
          cancelRequested: row.cancel_requested_at !== null,
        }
      }
      const reason = explainRefusal(facts.get(item.leaseId), { verb: 'heartbeat', ...item })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    })
  })
}

const leaseOf = ({ leaseId, workerId }: HeartbeatItem) => nameOf(leaseId, workerId)
const nameOf = (leaseId: string, workerId: string) => `${leaseId} ${workerId}`
