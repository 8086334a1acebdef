import { HANDOUTS_MAX, TIMEOUT_GRACE_MS, WORKER_UNSEEN_MS } from '../../core/run/job.ts'
import {
  parseRunError,
  type RunError,
  type RunState,
  TIMEOUT,
  WORKER_LOST,
  WORKER_REVOKED,
} from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { each, one, type ParamsOf, query, type RowOf, type Work } from '../statement.ts'
import { vacateLeadership } from '../system/leadership.ts'
import { countNow } from '../system/minute-counts.ts'
import type { Term } from '../system/term.ts'
import { type Failure, type Followed, followFailures } from './after-failure.ts'
import {
  confirmRuns,
  endHeld,
  endReady,
  forsakeRuns,
  haltRuns,
  lockExhausted,
  lockExpired,
  lockUnstarted,
  nextLapse,
  orphanRuns,
  PASSED,
  readWaiting,
} from './leader.sql.ts'

export interface Ended {
  jobId: string
  /** The queue of the run. */
  endedIn: string
  kind: string
  state: RunState
  /** No retry is left. */
  dead: boolean
  /** How often the job failed since it was submitted or retried by a person. */
  retries: number
  /** The job has a next run. */
  retried: boolean
  /** The queue of the next run, if that run is due now. */
  queue: string | null
}

/** Made before the transaction, for the next run. */
interface NextRunSeed {
  nextRunId: string
  random: number
}

/** A RUNNING run that the leader ends after the continuation time, unless its worker sends a heartbeat or ends it. */
export interface PendingExpiry {
  jobId: string
  version: number
  /** Set: the worker must send a heartbeat by then. */
  deadlineAtMs: number | null
  cancelRequestedAtMs: number | null
  continuationMs: number
}

export interface Review {
  /** Queues that have work again. */
  queues: string[]
  ended: Ended[]
  waiting: PendingExpiry[]
  /** The batch was full: more may be left. */
  full: boolean
  /** The time until the next lease expires; null when there is none. */
  nextLapseMs: number | null
}

export interface ReviewItem {
  /** The store's clock, and for how long it has gone evenly. */
  nowMs: number
  evenMs: number
  batchMax: number
  waitingMax: number
  /** How long an assigned run has to start. */
  reassignAfterMs: number
}

const NEVER_STARTED: RunError = {
  code: 'NEVER_STARTED',
  message: `Workers took this run ${HANDOUTS_MAX} times and did not start it`,
}

/** Checks the runs that workers hold. It ends only runs that no worker has started. */
export function reviewRuns(term: Term, item: ReviewItem): Command<Review> {
  const { nowMs, evenMs, batchMax, waitingMax, reassignAfterMs } = item
  return command('reap', function* work(): Work<Review> {
    const led = { ...term, max: batchMax }
    const unstarted = { ...led, now: nowMs, reassign_after_ms: reassignAfterMs, unseen_ms: WORKER_UNSEEN_MS }
    const orphaned = evenMs < reassignAfterMs ? [] : yield* each(orphanRuns, yield* query(lockUnstarted, unstarted))
    const never = { state: 'FAILED', error: JSON.stringify(NEVER_STARTED) } as const
    const worn = yield* query(lockExhausted, { ...led, handouts_max: HANDOUTS_MAX })
    const exhausted = yield* each(
      endReady,
      worn.map((row) => ({ ...row, ...never })),
    )
    const parked = yield* followFailures(
      exhausted.map((row) => ({ row, error: NEVER_STARTED, retryable: false, nextRunId: '', random: 0 })),
    )
    const since = { ...led, now: nowMs, even_ms: evenMs }
    const confirming = yield* query(confirmRuns, since)
    const halted = yield* query(haltRuns, { ...since, grace_ms: TIMEOUT_GRACE_MS, error: JSON.stringify(TIMEOUT) })
    const waiting = yield* query(readWaiting, { max: waitingMax })
    const next = yield* one(nextLapse, { now: nowMs })
    yield* countNow('dead_letters', exhausted.length)
    return {
      queues: [...new Set(orphaned.map((row) => row.queue))],
      ended: exhausted.map((row) => toEnded(row, parked)),
      waiting: waiting.map(toPendingExpiry),
      full: [orphaned, exhausted, confirming, halted].some(({ length }) => length === batchMax),
      nextLapseMs: next?.in_ms ?? null,
    }
  })
}

/** Ends expired runs that are unchanged since they were seen. Their next runs come in the same transaction. */
export function expireBatch(term: Term, seen: readonly (PendingExpiry & NextRunSeed)[]): Command<Ended[]> {
  const runs = JSON.stringify(
    seen.map(({ jobId, version, deadlineAtMs, cancelRequestedAtMs }) => ({
      job_id: jobId,
      version,
      deadline_at: deadlineAtMs,
      cancel_requested_at: cancelRequestedAtMs,
    })),
  )
  const spares = new Map(seen.map((one) => [one.jobId, one]))
  return command('expire', function* work(): Work<Ended[]> {
    const expired = new Map((yield* query(lockExpired, { ...term, runs })).map((row) => [row.job_id, row]))
    const rows = yield* each(endHeld, [...expired.values()].map(toEnd))
    const followed = yield* followFailures(
      rows.flatMap((row) => toFailure(row, expired.get(row.job_id), spares.get(row.job_id))),
    )
    const ended = rows.map((row) => toEnded(row, followed))
    yield* countNow('dead_letters', ended.filter(({ dead }) => dead).length)
    return ended
  })
}

type ExpiredRow = RowOf<typeof lockExpired>

function toEnd(row: ExpiredRow): ParamsOf<typeof endHeld> {
  const { job_id, cancel_requested_at } = row
  if (cancel_requested_at !== null) return { job_id, state: 'CANCELED', error: null }
  return { job_id, state: 'TIMED_OUT', error: JSON.stringify(errorOf(row)) }
}

/** A run that was halted has its error. A revoked worker has no lease. */
function errorOf({ error, token }: ExpiredRow): RunError {
  return (error === null ? null : parseRunError(JSON.parse(error))) ?? (token === null ? WORKER_REVOKED : WORKER_LOST)
}

/** Nothing follows a run with a cancel request. */
function toFailure(
  row: RowOf<typeof endHeld>,
  expired: ExpiredRow | undefined,
  spare: NextRunSeed | undefined,
): Failure[] {
  if (row.state !== 'TIMED_OUT' || expired === undefined || spare === undefined) return []
  const { nextRunId, random } = spare
  return [{ row, error: errorOf(expired), retryable: true, nextRunId, random }]
}

function toEnded(row: RowOf<typeof endReady>, followed: ReadonlyMap<string, Followed>): Ended {
  const { next, dead } = followed.get(row.job_id) ?? { next: null, dead: false }
  return {
    jobId: row.job_id,
    endedIn: row.queue,
    kind: row.kind,
    state: row.state,
    dead,
    retries: row.retry_count,
    retried: next !== null,
    queue: next?.due ? next.queue : null,
  }
}

function toPendingExpiry(row: RowOf<typeof readWaiting>): PendingExpiry {
  return {
    jobId: row.job_id,
    version: row.version,
    deadlineAtMs: row.deadline_at,
    cancelRequestedAtMs: row.cancel_requested_at,
    continuationMs: row.deadline_at === PASSED ? 0 : row.continuation_ms,
  }
}

/** This process has the lock of the folder, so the process before it is dead: its leases and its term end now. */
export function takeOverFolder(localWorkerPrefix: string): Command<number> {
  return command('take_over_folder', function* work(): Work<number> {
    yield* query(vacateLeadership, {})
    return (yield* query(forsakeRuns, { prefix: localWorkerPrefix })).length
  })
}
