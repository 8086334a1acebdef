import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { readOwnerOfJob } from '../artifacts/artifacts.sql.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command, commandIn } from '../port.ts'
import { giveBack } from '../runs/costs.ts'
import { recordMoves } from '../runs/lifecycle.ts'
import { MOVED, MOVED_ROW } from '../runs/runs.sql.ts'
import { each, one, query, statement, type Work } from '../statement.ts'
import { examineDeleted, lockEndedJob, readWhyKept } from '../system/retention.sql.ts'
import { removeLocked } from '../system/retention.ts'
import { readJobs } from './read-jobs.ts'

const CANCELABLE = 'state, cancel_requested_at, assigned_worker_id'

export const lockLatestRun = statement('lock_latest_run', {
  params: { job_id: 'text' },
  row: { state: MOVED_ROW.state, cancel_requested_at: 'integer?', assigned_worker_id: 'text?' },
  postgres: `SELECT ${CANCELABLE} FROM ichido.runs WHERE job_id = $job_id AND latest FOR NO KEY UPDATE`,
  sqlite: `SELECT ${CANCELABLE} FROM ichido.runs WHERE job_id = $job_id AND latest`,
})

/** Guards that the job's latest run waits, or is assigned and has not started. */
export const cancelWaiting = statement('cancel_waiting', {
  params: { job_id: 'text' },
  row: MOVED_ROW,
  sql: `UPDATE ichido.runs SET state = 'CANCELED', version = version + 1, finished_at = now_ms(), last_event_n = last_event_n + 1
    WHERE job_id = $job_id AND latest AND state IN ('PENDING', 'ASSIGNED', 'ORPHANED') RETURNING ${MOVED}`,
})

/** Asks a RUNNING run to stop. Its worker, or the leader after the deadline, ends it. */
export const requestCancel = statement('request_cancel', {
  params: { job_id: 'text' },
  row: { id: 'text' },
  sql: `UPDATE ichido.runs SET cancel_requested_at = coalesce(cancel_requested_at, now_ms())
    WHERE job_id = $job_id AND latest AND state = 'RUNNING' RETURNING id`,
})

/** The leases of the worker's runs that are to stop. */
export const readCancels = statement('read_cancels', {
  params: { worker_id: 'text', max: 'integer' },
  row: { lease_id: 'text' },
  sql: `SELECT lease_id FROM ichido.runs WHERE assigned_worker_id = $worker_id AND state IN ('ASSIGNED', 'RUNNING')
      AND cancel_requested_at IS NOT NULL AND lease_id IS NOT NULL ORDER BY id LIMIT $max`,
})

export type CancelOutcome =
  | { kind: 'canceled' }
  /** The run is RUNNING. Its worker is asked to stop, and then the run ends CANCELED. */
  | { kind: 'requested'; workerId: string }
  | { kind: 'repeated' }
  | { kind: 'refused'; reason: 'ALREADY_ENDED' | 'NOT_FOUND'; state: RunState | null }

/** @param by who asked for it; null: the change is not recorded. */
export function cancelJob(jobId: string, by: By | null = null): Command<CancelOutcome> {
  return commandIn('users', 'cancel', function* work(): Work<CancelOutcome> {
    for (;;) {
      const outcome = yield* cancelLatest(jobId, by)
      if (outcome !== null) return outcome
    }
  })
}

/** The leases of a worker's runs that are to stop, up to a maximum. */
export function findCancels(workerId: string, limit: number): Command<string[]> {
  return command('cancels', function* work(): Work<string[]> {
    const rows = yield* query(readCancels, { worker_id: workerId, max: limit })
    return rows.map((row) => row.lease_id)
  })
}

/** Null when the job has moved on from a failed run to its next run: the caller tries again. */
function* cancelLatest(jobId: string, by: By | null): Work<CancelOutcome | null> {
  const run = yield* one(lockLatestRun, { job_id: jobId })
  if (run === undefined) {
    const [job] = yield* each(readJobs, [{ job_id: jobId }])
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

export type DeleteOutcome =
  | { kind: 'deleted' }
  /** The job has more events or logs than one transaction removes: run the command again. */
  | { kind: 'unfinished' }
  | { kind: 'refused'; refusal: DeleteRefusal }

export type DeleteRefusal =
  | { reason: 'NOT_FOUND' }
  | { reason: 'NOT_ENDED'; state: RunState }
  /** The job that it replaces still exists, and could then be replaced a second time. */
  | { reason: 'REPLACES'; jobId: string }
  | { reason: 'IN_REDRIVE' }

/**
 * Removes a job that has ended, and everything that belongs to it. It takes the locks of a retry, so a job is either retried or
 * deleted. A retry between two transactions of a long deletion keeps the job without the removed events and logs.
 */
export function deleteJob(jobId: string, by: By): Command<DeleteOutcome> {
  return commandIn('users', 'delete_job', function* work(again): Work<DeleteOutcome> {
    const owner = yield* one(readOwnerOfJob, { job_id: jobId })
    if (owner !== undefined) yield* lockUsersOf([owner.user_id])
    const ended = yield* one(lockEndedJob, { job_id: jobId })
    if (yield* isRecorded(again, by)) return { kind: 'deleted' }
    if (ended === undefined) return { kind: 'refused', refusal: yield* whyKept(jobId) }
    const locked = JSON.stringify([jobId])
    const { rows, unfinished } = yield* removeLocked(locked, () => query(examineDeleted, { job_ids: locked }))
    if (unfinished) return { kind: 'unfinished' }
    if (!rows.get('jobs')) return { kind: 'refused', refusal: yield* whyKept(jobId) }
    yield* record(by, 'job.delete', jobId, { state: ended.state }, null)
    return { kind: 'deleted' }
  })
}

function* whyKept(jobId: string): Work<DeleteRefusal> {
  const row = yield* one(readWhyKept, { job_id: jobId })
  if (row === undefined) return { reason: 'NOT_FOUND' }
  if (!row.ended) return { reason: 'NOT_ENDED', state: row.state }
  return row.predecessor === null ? { reason: 'IN_REDRIVE' } : { reason: 'REPLACES', jobId: row.predecessor }
}
