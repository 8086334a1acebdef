import { decide, type RunCommand, type RunFacts, type RunRefusal } from '../../core/run/run-state.ts'
import { each, type Values, type Work } from '../statement.ts'
import { type FACTS_ROW, readFacts } from './runs.sql.ts'

export type FactsRow = Values<typeof FACTS_ROW>

/** By run. */
export function* factsOf(items: readonly { runId: string }[]): Work<Map<string, FactsRow>> {
  const rows = yield* each(
    readFacts,
    items.map(({ runId }) => ({ id: runId })),
  )
  return new Map(rows.map((row) => [row.id, row]))
}

export function toFacts(row: FactsRow): RunFacts {
  return {
    state: row.state,
    version: row.version,
    runAtMs: row.run_at,
    workerId: row.assigned_worker_id,
    leaseId: row.lease_id,
    startId: row.start_id,
    leaderEpoch: row.leader_epoch,
    cancelRequestedAtMs: row.cancel_requested_at,
    outcomeHash: row.outcome_hash,
  }
}

/**
 * Says why a guarded write changed nothing. It only explains: the write was decided by its WHERE, and a row that
 * would be let through now was changed since. A report that would be was too early: only a start makes its run what it is.
 * Of the others the caller no longer holds what it thought it held.
 */
export function explain(row: FactsRow | undefined, command: RunCommand): 'repeat' | RunRefusal | 'NOT_FOUND' {
  if (row === undefined) return 'NOT_FOUND'
  const decision = decide(toFacts(row), command, Number.MAX_SAFE_INTEGER)
  if (decision.kind === 'repeat') return 'repeat'
  if (decision.kind === 'refuse') return decision.reason
  return command.verb === 'finish' || command.verb === 'fail' ? 'NOT_STARTED' : 'LEASE_LOST'
}

/** Whether a guarded write would change the run as it is now. */
export function fits(row: FactsRow | undefined, command: RunCommand): boolean {
  return row !== undefined && decide(toFacts(row), command, Number.MAX_SAFE_INTEGER).kind === 'move'
}

/** The run that a lease_id belongs to; null when it cannot be one. */
export function runIdOf(leaseId: string): string | null {
  const match = /^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.[\w-]{1,64}$/.exec(leaseId)
  return match?.[1] ?? null
}
