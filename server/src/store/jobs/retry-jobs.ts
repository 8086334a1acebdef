import { admit } from '../../core/limits/quota.ts'
import { DEFAULT_UPLOAD_TTL_SECONDS, UPLOAD_WAIT_MS } from '../../core/run/artifact.ts'
import { record } from '../access/audit.ts'
import { giveTags, type QueueTime, type Tagged } from '../leasing/fair-tags.ts'
import { type LockedUser, lockAndCount, readCosts } from '../limits/users.ts'
import { type Command, commandIn } from '../port.ts'
import { changeCosts } from '../runs/costs.ts'
import { insertNextRuns } from '../runs/runs.sql.ts'
import { each, type ParamsOf, type Work } from '../statement.ts'
import { deleteKeys, forgetExpiredKeys, readExpiredKeys, readKeys, reclaimKeys, renewKeys } from '../submission/keys.ts'
import {
  awaitUploadsAgain,
  type EndedRefusal,
  type LatestRun,
  lockEnded,
  readJobsOfRuns,
  readLacking,
  readLatest,
  refusalOf,
  resolveDeadLetters,
} from './ended-jobs.ts'

interface RetryItem {
  jobId: string
  /** Made before the transaction begins, so that a second try cannot make a second run. */
  nextRunId: string
}

type RetryRefusal =
  | EndedRefusal
  | { reason: 'QUOTA_EXCEEDED' | 'COST_LIMIT_EXCEEDED'; message: string }
  | { reason: 'KEY_TAKEN'; key: string; byJobId: string | null }

interface Retried {
  kind: 'retried'
  jobId: string
  queue: string
  /** Null: an earlier try made the run. */
  ready: Tagged | null
  /** How long the job was a dead letter; null when it was none. */
  parkedMs: number | null
}

export type RetryOutcome = Retried | ({ kind: 'refused'; jobId: string } & RetryRefusal)

/** A key that is restored lives at least this long: no running removal of the key takes longer. */
const KEY_TTL_MS = 24 * 3_600_000
const UPLOAD_TTL_MS = DEFAULT_UPLOAD_TTL_SECONDS * 1000

/** A retry of one job, by a person. */
export function retryJob(
  item: RetryItem,
  actor: string,
  auditId: string,
  leased: readonly QueueTime[],
): Command<RetryOutcome> {
  return commandIn('users', 'retry', function* work(again): Work<RetryOutcome> {
    const [before] = yield* each(readLatest, [{ job_id: item.jobId }])
    const [outcome] = yield* retryJobs([item], again, leased)
    if (outcome === undefined) throw new Error('Every retry has an outcome')
    const unheard = before?.run_id === item.nextRunId
    if (outcome.kind === 'retried' && !unheard) {
      const was = { state: before?.state ?? null, run_id: before?.run_id ?? null }
      yield* record({ id: auditId, actor }, 'job.retry', item.jobId, was, { run_id: item.nextRunId })
    }
    return outcome
  })
}

/**
 * Gives ended jobs a next run that is due now, with a fresh retry budget. They leave the dead letters. As in a submit, the quota
 * must allow it, and the key must not name another job by now. It locks users, keys, runs.
 */
export function* retryJobs(
  items: readonly RetryItem[],
  again: boolean,
  leased: readonly QueueTime[],
): Work<RetryOutcome[]> {
  const done = new Map<string, RetryOutcome>()
  if (again) yield* findOwn(items, done)
  const open = items.filter((item) => !done.has(item.jobId))
  if (open.length > 0) yield* retryOpen(open, done, leased)
  return items.flatMap((item) => done.get(item.jobId) ?? [])
}

/** An earlier try may have committed. */
function* findOwn(items: readonly RetryItem[], done: Map<string, RetryOutcome>): Work<void> {
  const rows = yield* each(
    readJobsOfRuns,
    items.map((item) => ({ job_id: item.jobId, run_id: item.nextRunId })),
  )
  for (const { job_id: jobId, queue } of yield* each(readLatest, rows)) {
    done.set(jobId, { kind: 'retried', jobId, queue, ready: null, parkedMs: null })
  }
}

function* retryOpen(
  items: readonly RetryItem[],
  done: Map<string, RetryOutcome>,
  leased: readonly QueueTime[],
): Work<void> {
  const ids = items.map(({ jobId }) => ({ job_id: jobId }))
  const owners = (yield* each(readLatest, ids)).map((row) => row.user_id)
  if (owners.length === 0) {
    for (const { jobId } of items) done.set(jobId, { kind: 'refused', jobId, reason: 'NOT_FOUND' })
    return
  }
  const { users, nowMs, countedAtMs } = yield* lockAndCount(owners)
  yield* readCosts(users.values(), countedAtMs)
  // A second read: only under the lock of its user does an ended job stay ended.
  const latest = new Map((yield* each(readLatest, ids)).map((row) => [row.job_id, row]))
  const admitted = admitEnded(items, latest, users, done)
  const keyed = yield* takeKeys(admitted, nowMs, done)
  yield* insertRuns(keyed, countedAtMs, done, leased)
}

interface Admitted {
  item: RetryItem
  row: LatestRun
}

function admitEnded(
  items: readonly RetryItem[],
  latest: ReadonlyMap<string, LatestRun>,
  users: ReadonlyMap<string, LockedUser>,
  done: Map<string, RetryOutcome>,
): Admitted[] {
  const admitted: Admitted[] = []
  for (const item of items) {
    const { jobId } = item
    const row = latest.get(jobId)
    const user = row && users.get(row.user_id)
    const refusal = refusalOf(row)
    if (refusal !== null) {
      done.set(jobId, { kind: 'refused', jobId, ...refusal })
    } else if (row === undefined || user === undefined) {
      done.set(jobId, { kind: 'refused', jobId, reason: 'NOT_FOUND' })
    } else {
      const admission = admit(user, user, 1, chargeOf(row))
      if (admission.ok) {
        user.inUse++
        user.spentMicros += chargeOf(row)
        admitted.push({ item, row })
      } else {
        done.set(jobId, { kind: 'refused', jobId, reason: admission.code, message: admission.message })
      }
    }
  }
  return admitted
}

/** The estimate is charged again only if it was given back: the job was canceled before it started. */
function chargeOf({ given_back, estimated_cost_micros }: LatestRun): number {
  return given_back ? estimated_cost_micros : 0
}

/** Restores a key that was removed. If the key names another job by now, a retry would make two jobs of one key. */
function* takeKeys(
  admitted: readonly Admitted[],
  nowMs: number,
  done: Map<string, RetryOutcome>,
): Work<readonly Admitted[]> {
  const until = (ids: readonly string[]) => ids.map((job_id) => ({ job_id, until: nowMs + KEY_TTL_MS }))
  const ids = admitted.map(({ item }) => item.jobId)
  const renewed = new Set((yield* each(renewKeys, until(ids))).map((row) => row.job_id))
  const lost = yield* each(
    readExpiredKeys,
    ids.filter((id) => !renewed.has(id)).map((job_id) => ({ job_id })),
  )
  if (lost.length === 0) return admitted
  yield* removeExpired(lost, nowMs)
  const reclaimed = yield* each(reclaimKeys, until(lost.map((row) => row.job_id)))
  yield* each(forgetExpiredKeys, reclaimed)
  const back = new Set(reclaimed.map((row) => row.job_id))
  const missing = lost.filter((row) => !back.has(row.job_id))
  const takers = new Map((yield* each(readKeys, missing.map(nameOf))).map((row) => [JSON.stringify(nameOf(row)), row]))
  for (const row of missing) {
    const { job_id: jobId, idempotency_key: key } = row
    const byJobId = takers.get(JSON.stringify(nameOf(row)))?.job_id ?? null
    done.set(jobId, { kind: 'refused', jobId, reason: 'KEY_TAKEN', key, byJobId })
  }
  return admitted.filter(({ item }) => !done.has(item.jobId))
}

/** Removes expired keys of other jobs under the same names, as a submit does. */
function* removeExpired(lost: readonly KeyName[], nowMs: number): Work<void> {
  const expired: ParamsOf<typeof deleteKeys>[] = []
  for (const row of yield* each(readKeys, lost.map(nameOf))) {
    if (row.expires_at <= nowMs && !row.job_active) expired.push({ ...nameOf(row), job_id: row.job_id, at: nowMs })
  }
  yield* each(
    deleteKeys,
    expired.sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1)),
  )
}

type KeyName = ParamsOf<typeof readKeys>

function nameOf({ idempotency_key, user_id, operation }: KeyName): KeyName {
  return { idempotency_key, user_id, operation }
}

function* insertRuns(
  admitted: readonly Admitted[],
  createdAtMs: number,
  done: Map<string, RetryOutcome>,
  leased: readonly QueueTime[],
): Work<void> {
  const retried = yield* takeRuns(admitted, done)
  const ids = retried.map(({ item }) => ({ job_id: item.jobId }))
  const lacking = new Set((yield* each(readLacking, ids)).map((row) => row.job_id))
  const waitMs = ({ jobId }: RetryItem) => (lacking.has(jobId) ? UPLOAD_WAIT_MS : 0)
  // The tag is a new one: the tag of the run before may be days old, and the retries of many such runs would be served before all
  // other jobs.
  const ready = yield* giveTags(
    retried.map(({ row: { queue, user_id, priority } }) => ({ queue, userId: user_id, priority })),
    leased,
  )
  yield* each(
    insertNextRuns,
    retried.map(({ item, row }, i) => ({
      job_id: item.jobId,
      run_no: row.ended_run_no ?? 0,
      next_id: item.nextRunId,
      delay_ms: waitMs(item),
      retry_count: 0,
      tag: ready[i]?.fairTag ?? null,
      created_at: createdAtMs,
    })),
  )
  yield* each(
    awaitUploadsAgain,
    retried.flatMap(({ item: { jobId } }) => (lacking.has(jobId) ? [{ job_id: jobId, ttl_ms: UPLOAD_TTL_MS }] : [])),
  )
  const resolved = yield* each(
    resolveDeadLetters,
    retried.map(({ row: { job_id, run_id } }) => ({ job_id, run_id })),
  )
  const parkedMs = new Map(resolved.map(({ job_id, parked_ms }) => [job_id, parked_ms]))
  yield* changeCosts(
    retried.map(({ row }) => ({ userId: row.user_id, chargedAtMs: createdAtMs, micros: chargeOf(row) })),
  )
  retried.forEach(({ row: { job_id: jobId, queue } }, i) => {
    done.set(jobId, { kind: 'retried', jobId, queue, ready: ready[i] ?? null, parkedMs: parkedMs.get(jobId) ?? null })
  })
}

/** Users without limits are locked in shared mode, so another transaction may have retried or replaced the job first. */
function* takeRuns(admitted: readonly Admitted[], done: Map<string, RetryOutcome>): Work<Admitted[]> {
  const latest = yield* lockEnded(admitted.map(({ item }) => item.jobId))
  return admitted.flatMap(({ item }) => {
    const { jobId } = item
    const row = latest.get(jobId)
    const refusal = refusalOf(row)
    if (refusal !== null) done.set(jobId, { kind: 'refused', jobId, ...refusal })
    return row === undefined || refusal !== null ? [] : [{ item, row }]
  })
}
