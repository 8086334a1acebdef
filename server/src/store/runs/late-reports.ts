import { decide, type RunCommand, type RunState } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { one, type RowOf, type Work } from '../statement.ts'
import { type FinishItem, type FinishOutcome, finishRunsNow, toRepeated } from './finish-runs.ts'
import { adoptRun, readAfter, readLateness } from './late-reports.sql.ts'
import { toFacts } from './run-facts.ts'

export interface LateItem extends FinishItem {
  /** Random: it names the lease under which the next run is adopted. */
  token: string
}

/**
 * A report on a run that the leader has given up because its lease lapsed. The job's next run, as long as it waits and nobody
 * was handed it, is adopted by the worker and ended with what it reports, in one transaction: the run that timed out stays as
 * it is, each run has one outcome, and nobody else ever held the job in between.
 */
export function finishLate(item: LateItem): Command<FinishOutcome> {
  return command('finish_late', function* work(): Work<FinishOutcome> {
    const { runId, workerId, leaseId, token } = item
    const adopted = yield* one(adoptRun, { run_id: runId, worker_id: workerId, lease_id: leaseId, token })
    if (adopted === undefined) return yield* explainLate(item)
    const held = { runId: adopted.id, leaseId: adopted.lease_id, version: null, leaderEpoch: null }
    const [outcome] = yield* finishRunsNow([{ ...item, ...held }])
    if (outcome === undefined) throw new Error('A report has an outcome')
    return outcome
  })
}

function* explainLate(item: LateItem): Work<FinishOutcome> {
  const row = yield* one(readAfter, { run_id: item.runId })
  // Nothing came after it: the job has ended with it.
  if (row === undefined) return { kind: 'refused', reason: 'ALREADY_ENDED' }
  const decision = decide({ ...toFacts(row), before: beforeOf(row) }, adoptionOf(item), Number.MAX_SAFE_INTEGER)
  if (decision.kind === 'repeat') return yield* toRepeated({ ...item, runId: row.id }, row)
  // One that could be adopted now was not when it was tried: its worker was revoked.
  return { kind: 'refused', reason: decision.kind === 'refuse' ? decision.reason : 'LEASE_LOST' }
}

function adoptionOf({ workerId, leaseId, outcomeHash }: LateItem): RunCommand {
  return { verb: 'adopt', workerId, leaseId, outcomeHash }
}

export function beforeOf(row: RowOf<typeof readAfter>) {
  return { state: row.before_state, workerId: row.before_worker_id, leaseId: row.before_lease_id }
}

/** How a worker's run ended, and what became of its job since. */
export interface Lateness {
  state: RunState
  errorCode: string | null
  leaseEndedAtMs: number | null
  /** The job's last run; null when it is this one. */
  since: { state: RunState; attempt: number; workerId: string | null } | null
}

/** Null when the worker never held the job, or not that run of it. */
export function findLateness(jobId: string, workerId: string, runId: string | null): Command<Lateness | null> {
  return command('find_lateness', function* work(): Work<Lateness | null> {
    const row = yield* one(readLateness, { job_id: jobId, worker_id: workerId, run_id: runId })
    if (row === undefined) return null
    const last = { state: row.last_state, attempt: row.last_attempt, workerId: row.last_worker_id }
    return {
      state: row.state,
      errorCode: row.error?.code ?? null,
      leaseEndedAtMs: row.lease_expires_at,
      since: row.is_last ? null : last,
    }
  })
}
