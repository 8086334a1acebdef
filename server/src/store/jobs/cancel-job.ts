import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { type By, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { giveBack } from '../runs/costs.ts'
import { recordMoves } from '../runs/lifecycle.ts'
import { cancelWaiting, lockLatestRun, readCancels, requestCancel } from '../runs/runs.sql.ts'
import { each, one, query, type Work } from '../statement.ts'
import { readJobs } from './jobs.sql.ts'

export type CancelOutcome =
  | { kind: 'canceled' }
  /** It is RUNNING: its worker is asked to stop, and the run ends CANCELED when it has. */
  | { kind: 'requested'; workerId: string }
  | { kind: 'repeated' }
  | { kind: 'refused'; reason: 'ALREADY_ENDED' | 'NOT_FOUND'; state: RunState | null }

/** @param by who asked for it; null: nobody is to be told of. */
export function cancelJob(jobId: string, by: By | null = null): Command<CancelOutcome> {
  return command('cancel', function* work(): Work<CancelOutcome> {
    for (;;) {
      const outcome = yield* cancelLatest(jobId, by)
      if (outcome !== null) return outcome
    }
  })
}

/** The leases of a worker's runs that are to stop, at most so many. */
export function findCancels(workerId: string, limit: number): Command<string[]> {
  return command('cancels', function* work(): Work<string[]> {
    const rows = yield* query(readCancels, { worker_id: workerId, max: limit })
    return rows.map((row) => row.lease_id)
  })
}

/** Null when the job moved on in between, from a run that failed to its next one: look again, there is a run to cancel. */
function* cancelLatest(jobId: string, by: By | null): Work<CancelOutcome | null> {
  const run = yield* one(lockLatestRun, { job_id: jobId })
  if (run === undefined) {
    const [job] = yield* each(readJobs, [[jobId]])
    return job === undefined ? { kind: 'refused', reason: 'NOT_FOUND', state: null } : null
  }
  const { state } = run
  if (state === 'CANCELED') return { kind: 'repeated' }
  if (isFinal(state)) return { kind: 'refused', reason: 'ALREADY_ENDED', state }
  const running = state === 'RUNNING'
  const requested = { kind: 'requested', workerId: run.assigned_worker_id ?? '' } as const
  if (running && run.cancel_requested_at !== null) return requested
  if (running) yield* query(requestCancel, { job_id: jobId })
  else {
    const canceled = yield* query(cancelWaiting, { job_id: jobId })
    yield* recordMoves(canceled)
    yield* giveBack(canceled.map((row) => row.id))
  }
  const after = running ? { state, cancel_requested: true } : { state: 'CANCELED' }
  if (by !== null) yield* record(by, 'job.cancel', jobId, { state }, after)
  return running ? requested : { kind: 'canceled' }
}
