import { isFinal, type RunState } from '../../core/run-state.ts'
import { type Command, command } from '../port.ts'
import { readJobs } from '../sql/jobs.ts'
import { cancelWaiting, requestCancel } from '../sql/runs.ts'
import { each, integer, one, query, type Row, text, type Work } from '../statement.ts'
import { changeCosts } from './costs.ts'
import { recordMoves } from './lifecycle.ts'

export type CancelOutcome =
  | { kind: 'canceled' }
  /** It is RUNNING: its worker is asked to stop, and the run ends CANCELED when it has. */
  | { kind: 'requested' }
  | { kind: 'repeated' }
  | { kind: 'refused'; reason: 'ALREADY_ENDED' | 'NOT_FOUND'; state: RunState | null }

export function cancelJob(jobId: string): Command<CancelOutcome> {
  return command('cancel', function* work(): Work<CancelOutcome> {
    for (;;) {
      const outcome = yield* cancelLatest(jobId)
      if (outcome !== null) return outcome
    }
  })
}

/** Null when the job moved on in between, from a run that failed to its next one: look again, there is a run to cancel. */
function* cancelLatest(jobId: string): Work<CancelOutcome | null> {
  const canceled = yield* query(cancelWaiting, jobId)
  if (canceled.length > 0) {
    yield* recordMoves(canceled)
    yield* giveBack(jobId, canceled)
    return { kind: 'canceled' }
  }
  const running = yield* one(requestCancel, jobId)
  if (running !== undefined) return { kind: 'requested' }
  const [job] = yield* each(readJobs, [[jobId]])
  if (job === undefined) return { kind: 'refused', reason: 'NOT_FOUND', state: null }
  const state = text(job, 'state') as RunState
  if (!isFinal(state)) return null
  return state === 'CANCELED' ? { kind: 'repeated' } : { kind: 'refused', reason: 'ALREADY_ENDED', state }
}

/** The estimate of a job that never started is not spent. Run 1 that has not started is the only such case. */
function* giveBack(jobId: string, [run]: readonly Row[]): Work<void> {
  if (run === undefined || integer(run, 'run_no') !== 1) return
  const [job] = yield* each(readJobs, [[jobId]])
  const micros = -integer(job, 'estimated_cost_micros')
  yield* changeCosts([{ userId: text(job, 'user_id'), createdAtMs: integer(job, 'created_at'), micros }])
}
