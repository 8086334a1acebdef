import type { RunRefusal } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/fold.ts'
import { explain, factsOf } from '../runs/run-facts.ts'
import { heartbeatRuns } from '../runs/runs.sql.ts'
import { each, type Work } from '../statement.ts'

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
  return command('heartbeat', function* work(): Work<HeartbeatOutcome[]> {
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
    // A run has one lease that can be extended: each item that named that lease was heard.
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
      const reason = explain(facts.get(item.runId), { verb: 'heartbeat', ...item })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    })
  })
}

const leaseOf = ({ leaseId, workerId }: HeartbeatItem) => JSON.stringify([leaseId, workerId])
