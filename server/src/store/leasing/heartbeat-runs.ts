import type { RunRefusal } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { foldBy } from '../runs/fold.ts'
import { explain } from '../runs/run-facts.ts'
import { heartbeatRuns, readFacts } from '../runs/runs.sql.ts'
import { each, integer, integerOrNull, text, type Work } from '../statement.ts'

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
      firsts.map((item) => [item.runId, item.workerId, item.leaseId, item.leaseTtlMs]),
    )
    // A run has one lease that can be extended: whoever named it with that lease was heard.
    const extended = new Map(rows.map((row) => [JSON.stringify([text(row, 'lease_id'), text(row, 'worker_id')]), row]))
    const missed = firsts.filter((item) => !extended.has(leaseOf(item)))
    const facts = new Map(
      (yield* each(
        readFacts,
        missed.map((item) => [item.runId]),
      )).map((row) => [text(row, 'id'), row]),
    )
    return items.map((item): HeartbeatOutcome => {
      const row = extended.get(leaseOf(item))
      if (row !== undefined) {
        return {
          kind: 'extended',
          leaseExpiresAtMs: integer(row, 'lease_expires_at'),
          leaseTtlMs: integer(row, 'ttl_ms'),
          cancelRequested: integerOrNull(row, 'cancel_requested_at') !== null,
        }
      }
      const reason = explain(facts.get(item.runId), { verb: 'heartbeat', ...item })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    })
  })
}

const leaseOf = ({ leaseId, workerId }: HeartbeatItem) => JSON.stringify([leaseId, workerId])
