import { decide, type RunCommand, type RunFacts, type RunRefusal, type RunState } from '../../core/run/run-state.ts'
import { integer, integerOrNull, type Row, text, textOrNull } from '../statement.ts'

export function toFacts(row: Row): RunFacts {
  return {
    state: text(row, 'state') as RunState,
    version: integer(row, 'version'),
    runAtMs: integer(row, 'run_at'),
    workerId: textOrNull(row, 'assigned_worker_id'),
    leaseId: textOrNull(row, 'lease_id'),
    startId: textOrNull(row, 'start_id'),
    leaderEpoch: integerOrNull(row, 'leader_epoch'),
    cancelRequestedAtMs: integerOrNull(row, 'cancel_requested_at'),
    outcomeHash: textOrNull(row, 'outcome_hash'),
  }
}

/**
 * Says why a guarded write changed nothing. It only explains: the write was decided by its WHERE, and a row that
 * would be let through now was changed since. A report that would be was too early: only a start makes its run what it is.
 * Of the others the caller no longer holds what it thought it held.
 */
export function explain(row: Row | undefined, command: RunCommand): 'repeat' | RunRefusal | 'NOT_FOUND' {
  if (row === undefined) return 'NOT_FOUND'
  const decision = decide(toFacts(row), command, Number.MAX_SAFE_INTEGER)
  if (decision.kind === 'repeat') return 'repeat'
  if (decision.kind === 'refuse') return decision.reason
  return command.verb === 'finish' || command.verb === 'fail' ? 'NOT_STARTED' : 'LEASE_LOST'
}

/** Whether a guarded write would change the run as it is now. */
export function fits(row: Row | undefined, command: RunCommand): boolean {
  return row !== undefined && decide(toFacts(row), command, Number.MAX_SAFE_INTEGER).kind === 'move'
}

/** The run that a lease_id belongs to; null when it cannot be one. */
export function runIdOf(leaseId: string): string | null {
  const match = /^([0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12})\.[\w-]{1,64}$/.exec(leaseId)
  return match?.[1] ?? null
}
