import { REQUEST_HASH_VERSION } from '../../core/keys/key.ts'
import { admit, bytesWarnings, refuseBytes } from '../../core/limits/quota.ts'
import { wantedRunAt } from '../../core/run/artifact.ts'
import { runAtProblem } from '../../core/run/job.ts'
import { awaitUploads, bytesOf, type OwnBlobs, ownBlobs } from '../artifacts/artifacts.ts'
import { type LatestRun, lockEnded, refusalOf, resolveDeadLetters } from '../jobs/ended-jobs.ts'
import { readJobs } from '../jobs/read-jobs.ts'
import { giveTags, type QueueTime, type Tagged } from '../leasing/fair-tags.ts'
import { addBytes, countBytes } from '../limits/bytes.ts'
import { type LockedUsers, lockAndCount, readCosts } from '../limits/users.ts'
import { type Command, commandIn } from '../port.ts'
import { changeCosts } from '../runs/costs.ts'
import { each, type ParamsOf, type RowOf, type Work } from '../statement.ts'
import { insertCallbacks } from '../webhooks/callbacks.sql.ts'
import { deleteKeys, readKeys, readKeysOfJobs } from './keys.ts'
import { consumeReservations, insertConsumed, readLive } from './reservations.sql.ts'
import {
  type Accepted,
  created,
  type RenderAccepted,
  type SubmitItem,
  type SubmitOutcome,
  type SubmitRefusal,
  submissionName,
  type UntaggedItem,
} from './submission.ts'
import { insertLabels, insertSubmission } from './submit.sql.ts'
import { plainRow, plainSubmit } from './submit-plain.ts'

/**
 * One transaction for any number of submissions: key, quota, cost, reservation, job, first run, first event and stored answer. It
 * locks sorted users, then keys, then the runs of jobs that are replaced. A refused item does not affect the others.
 */
export function submitJobs(items: readonly SubmitItem[], render: RenderAccepted): Command<SubmitOutcome[]> {
  return commandIn('batches', 'submit', (again) => submitWork(items, render, again), plainSubmit(items, render))
}

/** Gives the tags inside the transaction, so it needs no second connection. */
export function submitUntagged(
  untagged: readonly UntaggedItem[],
  leased: readonly QueueTime[],
  render: RenderAccepted,
): Command<{ outcomes: SubmitOutcome[]; tagged: Tagged[] }> {
  return commandIn('batches', 'submit', function* work(again) {
    const items = yield* giveTags(untagged, leased)
    return { outcomes: yield* submitWork(items, render, again), tagged: items }
  })
}

/** The body, for commands that also submit. */
export function* submitWork(
  items: readonly SubmitItem[],
  render: RenderAccepted,
  again: boolean,
): Work<SubmitOutcome[]> {
  const { users, nowMs, countedAtMs } = yield* lockAndCount(items.map((item) => item.userId))
  const done = new Map<SubmitItem, SubmitOutcome>()
  if (again) yield* findOwn(items, render, done)

  const open = () => items.filter((item) => !done.has(item))
  yield* replayStored(open(), nowMs, done)
  const replaced = yield* lockReplaced(open(), nowMs, done)
  const blobs = yield* ownBlobs(open())
  const facts = { users, replaced, blobs, nowMs, countedAtMs }
  const { admitted, repeats } = yield* admitFresh(open(), facts, render, done)
  yield* insert(yield* awaitUploads(admitted, blobs), nowMs, done)

  for (const [item, first] of repeats) done.set(item, repeat(item, first, done.get(first)))
  return items.map((item) => done.get(item) ?? unreachable())
}

/** An earlier try may have committed: its jobs are stored under the same ids. */
function* findOwn(
  items: readonly SubmitItem[],
  render: RenderAccepted,
  done: Map<SubmitItem, SubmitOutcome>,
): Work<void> {
  const ids = items.map((item) => ({ job_id: item.jobId }))
  const keys = yield* each(readKeysOfJobs, ids)
  const bodies = new Map(keys.map((row) => [row.job_id, row.response_body]))
  const byId = new Map(items.map((item) => [item.jobId, item]))
  for (const { job_id, created_at: createdAtMs, run_at: runAtMs } of yield* each(readJobs, ids)) {
    const item = byId.get(job_id)
    if (item === undefined) continue
    const body = bodies.get(item.jobId) ?? render(toAccepted(item, createdAtMs, runAtMs))
    done.set(item, created(item, body, runAtMs <= createdAtMs))
  }
}

/** Compares the stored request of a key with every item that has the key: one of them may be a misuse. */
function* replayStored(items: readonly SubmitItem[], nowMs: number, done: Map<SubmitItem, SubmitOutcome>): Work<void> {
  const keyed = new Map<string, SubmitItem[]>()
  const names: ParamsOf<typeof readKeys>[] = []
  for (const item of items) {
    if (item.key === null) continue
    const others = keyed.get(submissionName(item))
    others?.push(item)
    if (others !== undefined) continue
    keyed.set(submissionName(item), [item])
    names.push({ idempotency_key: item.key.key, user_id: item.userId, operation: item.key.operation })
  }
  const expired: ParamsOf<typeof deleteKeys>[] = []
  for (const row of yield* each(readKeys, names)) {
    const { idempotency_key, user_id, operation, job_id } = row
    if (row.expires_at <= nowMs && !row.job_active)
      expired.push({ idempotency_key, user_id, operation, job_id, at: nowMs })
    else
      for (const item of keyed.get(`${idempotency_key}\n${operation}\n${user_id}`) ?? [])
        done.set(item, replay(item, row))
  }
  // Sorted, so that two nodes cannot deadlock.
  yield* each(
    deleteKeys,
    expired.sort((a, b) => (JSON.stringify(a) < JSON.stringify(b) ? -1 : 1)),
  )
}

function replay(item: SubmitItem, row: RowOf<typeof readKeys>): SubmitOutcome {
  const comparable = row.hash_version === REQUEST_HASH_VERSION
  if (comparable && row.request_hash !== item.key?.requestHash) return reused(item, row.job_id)
  return {
    kind: 'replayed',
    jobId: row.job_id,
    status: row.response_status,
    body: row.response_body,
    queue: item.queue,
    due: false,
  }
}

function repeat(item: SubmitItem, first: SubmitItem, outcome: SubmitOutcome | undefined): SubmitOutcome {
  if (outcome === undefined || outcome.kind === 'refused') return unreachable()
  if (item.key?.requestHash !== first.key?.requestHash) return reused(item, outcome.jobId)
  return { ...outcome, kind: 'replayed' }
}

function reused(item: SubmitItem, jobId: string): SubmitOutcome {
  const message = `The key ${JSON.stringify(item.key?.key)} was used for job ${jobId} with a different request`
  return { kind: 'refused', refusal: { code: 'IDEMPOTENCY_KEY_REUSED', message, jobId } }
}

/** The jobs that are replaced. After waiting for a lock, another request may already have used the same key. */
function* lockReplaced(
  items: readonly SubmitItem[],
  nowMs: number,
  done: Map<SubmitItem, SubmitOutcome>,
): Work<Map<string, LatestRun>> {
  const rows = yield* lockEnded(items.flatMap(({ replacesJobId }) => replacesJobId ?? []))
  const late = items.filter(
    ({ replacesJobId }) => replacesJobId !== null && refusalOf(rows.get(replacesJobId)) !== null,
  )
  yield* replayStored(late, nowMs, done)
  return rows
}

interface Admitted {
  item: SubmitItem
  /** 0 unless the user has a limit of bytes. */
  bytes: number
  /** The job that it replaces. */
  replaced: LatestRun | null
  createdAtMs: number
  runAtMs: number
  body: string
}

/**
 * Admits items one after the other against a running count, so a batch cannot pass a limit. Items behind an admitted item with
 * the same key are its repeats. A refused item does not stop the items behind it. All admitted items are inserted together.
 */
function* admitFresh(
  items: readonly SubmitItem[],
  { users, replaced, blobs, nowMs, countedAtMs }: LockedUsers & { replaced: Map<string, LatestRun>; blobs: OwnBlobs },
  render: RenderAccepted,
  done: Map<SubmitItem, SubmitOutcome>,
): Work<{ admitted: Admitted[]; repeats: [SubmitItem, SubmitItem][] }> {
  yield* readCosts(users.values(), countedAtMs)
  for (const row of yield* countBytes([...users.values()])) {
    const user = users.get(row.user_id)
    if (user) user.usedBytes = row.used_bytes
  }
  const held = new Map<string, string>()
  const wanted = items.flatMap(({ reservationId, userId }) =>
    reservationId === null ? [] : [{ reservation_id: reservationId, user_id: userId, at: nowMs }],
  )
  for (const { reservation_id, user_id } of yield* each(readLive, wanted)) held.set(reservation_id, user_id)

  const admitted: Admitted[] = []
  const repeats: [SubmitItem, SubmitItem][] = []
  const firstOf = new Map<string, SubmitItem>()
  for (const item of items) {
    const first = firstOf.get(submissionName(item))
    if (first !== undefined) {
      repeats.push([item, first])
      continue
    }
    const user = users.get(item.userId) ?? unreachable()
    const refuse = (refusal: SubmitRefusal) => done.set(item, { kind: 'refused', refusal })
    if (item.refusal !== undefined) {
      refuse(item.refusal)
      continue
    }
    const problem = item.runAtMs === null ? null : runAtProblem(item.runAtMs, nowMs)
    if (problem !== null) {
      refuse({ code: 'INVALID_PAYLOAD', message: problem, field: 'run_at' })
      continue
    }
    if (item.reservationId !== null && held.get(item.reservationId) !== item.userId) {
      refuse({ code: 'RESERVATION_NOT_ACTIVE', message: `The reservation ${item.reservationId} holds no slot` })
      continue
    }
    const { replacesJobId } = item
    const old = replacesJobId === null ? undefined : replaced.get(replacesJobId)
    const replaces = replacesJobId === null ? null : refusalOf(old)
    if (replacesJobId !== null && replaces !== null) {
      const message = `Job ${replacesJobId} cannot be replaced: ${replaces.reason}`
      refuse({ code: replaces.reason, message, replaces, jobId: replacesJobId })
      continue
    }
    const admission = admit(user, user, item.reservationId === null ? 1 : 0, item.estimatedCostMicros)
    if (!admission.ok) {
      refuse({ code: admission.code, message: admission.message })
      continue
    }
    const bytes = user.maxBytes === null ? 0 : bytesOf(item, blobs)
    const overfull = refuseBytes(user, bytes)
    if (overfull !== null) {
      refuse(overfull)
      continue
    }
    if (user.usedBytes !== null) user.usedBytes += bytes
    if (item.reservationId === null) user.inUse++
    else held.delete(item.reservationId)
    user.spentMicros += item.estimatedCostMicros
    const runAtMs = Math.max(countedAtMs, item.runAtMs ?? countedAtMs + item.delayMs)
    const { costLimitWarning } = admission
    const quotaWarnings = [...admission.quotaWarnings, ...bytesWarnings(user)]
    const accepted = { ...toAccepted(item, countedAtMs, runAtMs), quotaWarnings, costLimitWarning }
    // A second item of the batch cannot replace the same job.
    if (old !== undefined) replaced.set(old.job_id, { ...old, replaced_by: item.jobId })
    firstOf.set(submissionName(item), item)
    admitted.push({ item, bytes, replaced: old ?? null, createdAtMs: countedAtMs, runAtMs, body: render(accepted) })
  }
  return { admitted, repeats }
}

function* insert(admitted: readonly Admitted[], nowMs: number, done: Map<SubmitItem, SubmitOutcome>): Work<void> {
  yield* each(insertSubmission, admitted.map(submissionRow))
  yield* each(
    insertLabels,
    admitted.flatMap(({ item }) =>
      Object.entries(item.labels ?? {}).map(([name, value]) => ({ name, value, job_id: item.jobId })),
    ),
  )
  yield* each(
    insertCallbacks,
    admitted.flatMap(({ item: { jobId, callbackUrl } }) =>
      callbackUrl === undefined ? [] : [{ job_id: jobId, url: callbackUrl }],
    ),
  )
  yield* each(
    consumeReservations,
    admitted.flatMap(({ item }) =>
      item.reservationId === null
        ? []
        : [{ reservation_id: item.reservationId, user_id: item.userId, job_id: item.jobId, at: nowMs }],
    ),
  )
  yield* each(
    insertConsumed,
    admitted.flatMap(({ item, createdAtMs }) =>
      item.consumedReservationId === null
        ? []
        : [
            {
              reservation_id: item.consumedReservationId,
              user_id: item.userId,
              job_id: item.jobId,
              created_at: createdAtMs,
            },
          ],
    ),
  )
  yield* each(
    resolveDeadLetters,
    admitted.flatMap(({ replaced }) => replaced ?? []),
  )
  yield* changeCosts(
    admitted.map(({ item, createdAtMs }) => ({
      userId: item.userId,
      chargedAtMs: createdAtMs,
      micros: item.estimatedCostMicros,
    })),
  )
  yield* addBytes(admitted.map(({ item, bytes }) => [item.userId, bytes]))
  for (const { item, body, createdAtMs, runAtMs } of admitted)
    done.set(item, created(item, body, runAtMs <= createdAtMs))
}

function submissionRow({ item, createdAtMs, runAtMs, body }: Admitted): ParamsOf<typeof insertSubmission> {
  return {
    ...plainRow(item, body),
    labels: item.labels === null ? null : JSON.stringify(item.labels),
    estimated_cost_micros: item.estimatedCostMicros,
    created_at: createdAtMs,
    run_at: runAtMs,
    fair_tag: runAtMs <= createdAtMs ? item.fairTag : null,
    expires_at: item.key === null ? null : createdAtMs + item.key.ttlMs,
    replaces_job_id: item.replacesJobId,
    definition_id: item.definition?.id ?? null,
    scheduled_for: item.definition?.scheduledForMs ?? null,
  }
}

function toAccepted(item: SubmitItem, createdAtMs: number, runAtMs: number): Accepted {
  const { jobId, kind, queue } = item
  const [createdAt, runAt] = [new Date(createdAtMs).toISOString(), new Date(wantedRunAt(runAtMs)).toISOString()]
  return { jobId, kind, queue, createdAt, runAt, quotaWarnings: [], costLimitWarning: null }
}

function unreachable(): never {
  throw new Error('Every submission has an outcome and every user a row')
}
