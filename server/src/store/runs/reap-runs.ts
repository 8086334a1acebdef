import {
  DEFAULT_CONTINUATION_SECONDS,
  DEFAULT_LEASE_TTL_MS,
  HANDOUTS_MAX,
  TIMEOUT_GRACE_MS,
  WORKER_UNSEEN_MS,
} from '../../core/run/job.ts'
import {
  parseRunError,
  type RunError,
  type RunState,
  TIMEOUT,
  WORKER_LOST,
  WORKER_REVOKED,
} from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { one, query, type RowOf, type Work } from '../statement.ts'
import { vacateLeadership } from '../system/leadership.ts'
import { countNow } from '../system/minute-counts.ts'
import type { Term } from '../system/term.ts'
import { type Failure, type Followed, followFailures } from './after-failure.ts'
import {
  confirmRuns,
  exhaustRuns,
  expireRuns,
  forsakeRuns,
  haltRuns,
  nextLapse,
  orphanRuns,
  PASSED,
  readWaiting,
} from './leader.sql.ts'
import { recordMoves } from './lifecycle.ts'

export interface Ended {
  jobId: string
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
  runId: string
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
    const orphaned = evenMs < reassignAfterMs ? [] : yield* query(orphanRuns, unstarted)
    yield* recordMoves(orphaned)
    const exhausted = yield* query(exhaustRuns, {
      ...led,
      handouts_max: HANDOUTS_MAX,
      error: JSON.stringify(NEVER_STARTED),
    })
    yield* recordMoves(exhausted)
    const parked = yield* followFailures(
      exhausted.map((row) => ({ row, error: NEVER_STARTED, retryable: false, nextRunId: '', random: 0 })),
    )
    const since = { ...led, now: nowMs, even_ms: evenMs, continuation_seconds: DEFAULT_CONTINUATION_SECONDS }
    const confirming = yield* query(confirmRuns, { ...since, lease_ttl_seconds: DEFAULT_LEASE_TTL_MS / 1000 })
    const halted = yield* query(haltRuns, { ...since, grace_ms: TIMEOUT_GRACE_MS, error: JSON.stringify(TIMEOUT) })
    const waiting = yield* query(readWaiting, {
      max: waitingMax,
      continuation_seconds: DEFAULT_CONTINUATION_SECONDS,
    })
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
    seen.map(({ runId, version, deadlineAtMs, cancelRequestedAtMs }) => ({
      id: runId,
      version,
      deadline_at: deadlineAtMs,
      cancel_requested_at: cancelRequestedAtMs,
    })),
  )
  const spares = new Map(seen.map((one) => [one.runId, one]))
  return command('expire', function* work(): Work<Ended[]> {
    const errors = { lost_error: JSON.stringify(WORKER_LOST), revoked_error: JSON.stringify(WORKER_REVOKED) }
    const rows = yield* query(expireRuns, { ...term, runs, ...errors })
    yield* recordMoves(rows)
    const followed = yield* followFailures(rows.flatMap((row) => toFailure(row, spares.get(row.id))))
    const ended = rows.map((row) => toEnded(row, followed))
    yield* countNow('dead_letters', ended.filter(({ dead }) => dead).length)
    return ended
  })
}

/** Nothing follows a run with a cancel request. */
function toFailure(row: RowOf<typeof expireRuns>, spare: NextRunSeed | undefined): Failure[] {
  const error = row.state === 'TIMED_OUT' && row.error !== null ? parseRunError(JSON.parse(row.error)) : null
  if (error === null || spare === undefined) return []
  const { nextRunId, random } = spare
  return [{ row, error, retryable: true, nextRunId, random }]
}

function toEnded(row: RowOf<typeof exhaustRuns>, followed: ReadonlyMap<string, Followed>): Ended {
  const { next, dead } = followed.get(row.id) ?? { next: null, dead: false }
  return {
    jobId: row.job_id,
    state: row.state,
    dead,
    retries: row.retry_count,
    retried: next !== null,
    queue: next?.due ? next.queue : null,
  }
}

function toPendingExpiry(row: RowOf<typeof readWaiting>): PendingExpiry {
  return {
    runId: row.id,
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
