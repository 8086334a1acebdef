import type { RunState } from '../../core/run/run-state.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command, commandIn } from '../port.ts'
import { giveBack } from '../runs/costs.ts'
import { endHeld, endReady } from '../runs/leader.sql.ts'
import { state } from '../runs/rooms.sql.ts'
import { leaseIdOf } from '../runs/run-facts.ts'
import { IN_LOCK_ORDER, SORTED } from '../runs/runs.sql.ts'
import { each, one, query, type RowOf, statement, type Work } from '../statement.ts'
import { examineDeleted, lockEndedJob, readWhyKept } from '../system/retention.sql.ts'
import { removeLocked } from '../system/retention.ts'
import { readOwnerOfJob } from './job-owner.ts'

/** Whether a worker could start the run, or report it, decides how it is canceled: the row stays as it is until the commit. */
export const lockHeldRun = statement('lock_held_run', {
  params: { job_id: 'text' },
  row: { job_id: 'text', started_at: 'integer?', cancel_requested_at: 'integer?', worker_id: 'text' },
  postgres: `WITH t AS MATERIALIZED (SELECT t.job_id FROM unnest($job_id::uuid[]) AS t(job_id) ${SORTED})
    SELECT r.job_id, r.started_at, r.cancel_requested_at, r.worker_id
    FROM t JOIN ichido.held r ON by_key(r.job_id, t.job_id) FOR NO KEY UPDATE OF r`,
  sqlite: 'SELECT job_id, started_at, cancel_requested_at, worker_id FROM ichido.held WHERE job_id = $job_id',
})

const REQUESTED = 'cancel_requested_at = coalesce(cancel_requested_at, now_ms())'

/** Asks RUNNING runs that are locked to stop. Their worker, or the leader after the deadline, ends them. */
export const requestCancel = statement('request_cancel', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: `UPDATE ichido.held r SET ${REQUESTED} FROM unnest($job_id::uuid[]) AS t(job_id)
    WHERE by_key(r.job_id, t.job_id) AND r.started_at IS NOT NULL RETURNING r.job_id`,
  sqlite: `UPDATE ichido.held SET ${REQUESTED} WHERE job_id = $job_id AND started_at IS NOT NULL RETURNING job_id`,
})

const ENDED_STATE = 'SELECT state FROM ichido.ended WHERE job_id = $job_id AND latest'

/** Waits for a retry of the job: then its next run is canceled. */
export const lockEndedState = statement('lock_ended_state', {
  params: { job_id: 'text' },
  row: { state },
  postgres: `${ENDED_STATE} FOR NO KEY UPDATE`,
  sqlite: ENDED_STATE,
})

/** The leases of the worker's runs that are to stop. */
export const readCancels = statement('read_cancels', {
  params: { worker_id: 'text', max: 'integer' },
  row: { job_id: 'text', token: 'text' },
  sql: `SELECT job_id, token FROM ichido.held
    WHERE worker_id = $worker_id AND cancel_requested_at IS NOT NULL AND token IS NOT NULL ${IN_LOCK_ORDER} LIMIT $max`,
})

export type CancelOutcome =
  | { kind: 'canceled'; queue: string; jobKind: string }
  /** The run is RUNNING. Its worker is asked to stop, and then the run ends CANCELED. */
  | { kind: 'requested'; workerId: string }
  | { kind: 'repeated' }
  | { kind: 'refused'; reason: 'ALREADY_ENDED' | 'NOT_FOUND'; state: RunState | null }

/** A run may change rooms while each room is looked into, but not that often. */
const TRIES_MAX = 100

/** @param by who asked for it; null: the change is not recorded. */
export function cancelJob(jobId: string, by: By | null = null): Command<CancelOutcome> {
  return commandIn('users', 'cancel', function* work(): Work<CancelOutcome> {
    for (let tries = 0; tries < TRIES_MAX; tries++) {
      const outcome = yield* cancelLatest(jobId, by)
      if (outcome !== null) return outcome
    }
    throw new Error(`Job ${jobId} is in no room`)
  })
}

/** The leases of a worker's runs that are to stop, up to a maximum. */
export function findCancels(workerId: string, limit: number): Command<string[]> {
  return command('cancels', function* work(): Work<string[]> {
    const rows = yield* query(readCancels, { worker_id: workerId, max: limit })
    return rows.map(({ job_id, token }) => leaseIdOf(job_id, token))
  })
}

/**
 * It looks in each room in turn. Null: the run has changed rooms meanwhile, or the job has a next run, and the caller tries again.
 */
function* cancelLatest(jobId: string, by: By | null): Work<CancelOutcome | null> {
  const job_id = jobId
  const [waiting] = yield* each(endReady, [{ job_id, state: 'CANCELED', error: null }])
  if (waiting !== undefined) return yield* canceled(waiting, waiting.worker_id === null ? 'PENDING' : 'ORPHANED', by)
  const [run] = yield* each(lockHeldRun, [{ job_id }])
  if (run !== undefined && run.started_at === null) {
    const [assigned] = yield* each(endHeld, [{ job_id, state: 'CANCELED', error: null }])
    if (assigned === undefined) throw new Error('A run that is locked can be ended')
    return yield* canceled(assigned, 'ASSIGNED', by)
  }
  if (run !== undefined) {
    if (run.cancel_requested_at === null) {
      yield* each(requestCancel, [{ job_id }])
      if (by !== null) {
        yield* record(by, 'job.cancel', jobId, { state: 'RUNNING' }, { state: 'RUNNING', cancel_requested: true })
      }
    }
    return { kind: 'requested', workerId: run.worker_id }
  }
  const ended = yield* one(lockEndedState, { job_id })
  if (ended?.state === 'CANCELED') return { kind: 'repeated' }
  if (ended !== undefined) return { kind: 'refused', reason: 'ALREADY_ENDED', state: ended.state }
  const job = yield* one(readOwnerOfJob, { job_id })
  return job === undefined ? { kind: 'refused', reason: 'NOT_FOUND', state: null } : null
}

interface CanceledJobs {
  canceled: { jobId: string; queue: string; kind: string }[]
  /** These runs are RUNNING, and are asked to stop. */
  requested: { jobId: string; workerId: string }[]
}

/** A run may go back to `ready` after that room was looked into, but not twice. */
const PASSES = 2

/**
 * Cancels many jobs, as `cancelJob` does one. Jobs that have ended, or that are in none of these states now, are left out.
 * It locks `ready`, then `held`, each in the order of ids.
 */
export function* cancelJobs(jobIds: readonly string[], states: readonly string[] | null): Work<CanceledJobs> {
  const may = (state: RunState) => states === null || states.includes(state)
  const canceled: CanceledJobs['canceled'] = []
  const requested: CanceledJobs['requested'] = []
  let open = [...jobIds].sort()
  const end = (ids: readonly string[]) => ids.map((job_id) => ({ job_id, state: 'CANCELED' as const, error: null }))
  for (let pass = 0; pass < PASSES && open.length > 0; pass++) {
    const ready = may('PENDING') || may('ORPHANED') ? yield* each(endReady, end(open)) : []
    canceled.push(...ready.map(toCanceled))
    const left = without(
      open,
      ready.map(({ job_id }) => job_id),
    )
    const held = yield* each(
      lockHeldRun,
      left.map((job_id) => ({ job_id })),
    )
    const unstarted = held.filter(({ started_at }) => started_at === null && may('ASSIGNED'))
    canceled.push(...(yield* each(endHeld, end(unstarted.map(({ job_id }) => job_id)))).map(toCanceled))
    const running = held.filter(({ started_at }) => started_at !== null && may('RUNNING'))
    yield* each(
      requestCancel,
      running.map(({ job_id }) => ({ job_id })),
    )
    requested.push(...running.map(({ job_id, worker_id }) => ({ jobId: job_id, workerId: worker_id })))
    open = without(
      left,
      held.map(({ job_id }) => job_id),
    )
  }
  yield* giveBack(canceled.map(({ jobId }) => jobId))
  return { canceled, requested }
}

type EndedRow = RowOf<typeof endHeld>

function toCanceled({ job_id, queue, kind }: EndedRow): CanceledJobs['canceled'][number] {
  return { jobId: job_id, queue, kind }
}

function without(ids: readonly string[], others: readonly string[]): string[] {
  const gone = new Set(others)
  return ids.filter((id) => !gone.has(id))
}

function* canceled(
  { job_id: jobId, queue, kind: jobKind }: EndedRow,
  before: RunState,
  by: By | null,
): Work<CancelOutcome> {
  yield* giveBack([jobId])
  if (by !== null) yield* record(by, 'job.cancel', jobId, { state: before }, { state: 'CANCELED' })
  return { kind: 'canceled', queue, jobKind }
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
