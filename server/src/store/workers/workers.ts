import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { orphanRuns } from '../runs/leader.sql.ts'
import { each, exactlyOne, one, query, type RowOf, type Work } from '../statement.ts'
import type { Queues } from './workers.sql.ts'
import * as sql from './workers.sql.ts'

export type { Queues } from './workers.sql.ts'

interface WorkerToken {
  tokenHash: string
  workerId: string
  queues: Queues
  state: 'valid' | 'expired' | 'revoked'
  /** A renewed token that was not used yet. */
  fresh: boolean
}

export function findWorkerToken(tokenHash: string): Command<WorkerToken | null> {
  return command('find_worker_token', function* work(): Work<WorkerToken | null> {
    const row = yield* one(sql.findWorkerToken, { token_hash: tokenHash })
    if (row === undefined) return null
    return {
      tokenHash: row.token_hash,
      workerId: row.worker_id,
      queues: row.queues,
      state: row.revoked_at !== null ? 'revoked' : row.expires_at <= row.now ? 'expired' : 'valid',
      fresh: row.replaces !== null,
    }
  })
}

/** The first use of a renewed token shows that its answer has arrived. From then on the token before it is retired. */
export function settleToken(workerId: string, tokenHash: string, graceMs: number): Command<void> {
  return command('settle_worker_token', function* work(): Work<void> {
    yield* query(sql.lockWorker, { worker_id: workerId })
    yield* query(sql.retireReplaced, { token_hash: tokenHash, grace_ms: graceMs })
    yield* query(sql.settleToken, { token_hash: tokenHash })
  })
}

interface RenewItem {
  workerId: string
  tokenHash: string
  newTokenHash: string
  ttlMs: number
  /** JSON; null: it stays. */
  meta: string | null
  /** For how long an expired token still tells which worker it belonged to. */
  keepMs: number
}

export function renewToken(item: RenewItem): Command<{ expiresAtMs: number } | null> {
  return command('renew_worker_token', function* work(): Work<{ expiresAtMs: number } | null> {
    const worker = { worker_id: item.workerId }
    yield* query(sql.lockWorker, worker)
    const made = yield* one(sql.renewWorkerToken, {
      token_hash: item.tokenHash,
      new_token_hash: item.newTokenHash,
      ttl_ms: item.ttlMs,
    })
    if (made === undefined) return null
    yield* query(sql.forgetTokens, { ...worker, keep_ms: item.keepMs })
    yield* query(sql.attachWorker, { ...worker, meta: item.meta })
    return { expiresAtMs: made.expires_at }
  })
}

/** A request of a worker, and how long ago it was. */
export interface Sign {
  workerId: string
  agoMs: number
}

/**
 * @param signs sorted by worker, one for each worker
 * @returns whether each of the workers drains
 */
export function noteSeen(signs: readonly Sign[]): Command<Map<string, boolean>> {
  return command('seen_workers', function* work(): Work<Map<string, boolean>> {
    const seen = yield* each(
      sql.seenWorkers,
      signs.map(({ workerId, agoMs }) => ({ worker_id: workerId, ago_ms: agoMs })),
    )
    return new Map(seen.map(({ worker_id, drains }) => [worker_id, drains]))
  })
}

/** Null: there is no such worker. */
type DrainOutcome = { kind: 'shown'; worker: Worker } | { kind: 'revoked' } | null

/** The worker leases nothing after the commit, and keeps what it holds. */
export const drainWorker = (workerId: string, by: By) => change('drain_worker', sql.drainWorker, workerId, by)

/** The worker may lease again. */
export const resumeWorker = (workerId: string, by: By) => change('resume_worker', sql.resumeWorker, workerId, by)

function change(name: 'drain_worker' | 'resume_worker', update: typeof sql.drainWorker, workerId: string, by: By) {
  return command(name, function* work(again): Work<DrainOutcome> {
    const id = { worker_id: workerId }
    const before = yield* one(sql.holdWorker, id)
    if (before === undefined) return null
    if (before.revoked_at !== null) return { kind: 'revoked' }
    const draining = name === 'drain_worker'
    if (!(yield* isRecorded(again, by)) && (yield* query(update, id)).length > 0) {
      const action = draining ? 'worker.drain' : 'worker.resume'
      yield* record(by, action, workerId, { name: before.name, draining: !draining }, { draining })
    }
    return { kind: 'shown', worker: yield* exactlyOne(sql.findWorker, id) }
  })
}

/** The worker says that it stops. Any later request of the worker takes that back. */
export function detachWorker(workerId: string): Command<{ detachedAtMs: number } | null> {
  return command('detach_worker', function* work(): Work<{ detachedAtMs: number } | null> {
    const row = yield* one(sql.detachWorker, { worker_id: workerId })
    return row === undefined ? null : { detachedAtMs: row.detached_at }
  })
}

type RevokeOutcome =
  | {
      kind: 'revoked'
      revokedAtMs: number
      tokens: number
      leases: number
      orphaned: { jobId: string; queue: string }[]
    }
  | { kind: 'repeated'; revokedAtMs: number }
  | null

/** Ends a worker's rights and takes its leases away in one transaction; null when there is no such worker. */
export function revokeWorker(workerId: string, actor: string, auditId: string): Command<RevokeOutcome> {
  return command('revoke_worker', function* work(): Work<RevokeOutcome> {
    const id = { worker_id: workerId }
    const worker = yield* one(sql.holdWorker, id)
    if (worker === undefined) return null
    if (worker.revoked_at !== null) return { kind: 'repeated', revokedAtMs: worker.revoked_at }
    const revoked = yield* exactlyOne(sql.revokeWorker, id)
    const tokens = yield* query(sql.revokeWorkerTokens, id)
    const fenced = yield* query(sql.fenceRuns, id)
    const unstarted = fenced.flatMap(({ job_id, started_at }) => (started_at === null ? [{ job_id }] : []))
    // The next worker that asks gets them.
    const orphaned = yield* each(orphanRuns, unstarted)
    const [was, is] = [{ name: worker.name }, { fenced_leases: fenced.length }]
    yield* record({ id: auditId, actor }, 'worker.revoke', workerId, was, is)
    return {
      kind: 'revoked',
      revokedAtMs: revoked.revoked_at,
      tokens: tokens.filter(({ worked }) => worked).length,
      leases: fenced.length,
      orphaned: orphaned.map(({ job_id, queue }) => ({ jobId: job_id, queue })),
    }
  })
}

/** `detached_at`: the worker has said that it stops, and was silent since. `now` is the store's clock. */
export type Worker = RowOf<typeof sql.findWorker>

export function findWorker(workerId: string): Command<Worker | undefined> {
  return command('find_worker', () => one(sql.findWorker, { worker_id: workerId }))
}

/** Newest first. */
export function listWorkers(limit: number, cursor: string | null): Command<Listed<Worker>> {
  return command('list_workers', function* work() {
    const found = yield* query(sql.listWorkers, { max: limit + 1, after: cursor })
    return pageOf(found, limit, ({ worker_id }) => worker_id)
  })
}

export function countWorkers(onlineMs: number): Command<Record<string, number>> {
  return command('count_workers', function* work(): Work<Record<string, number>> {
    const rows = yield* query(sql.countWorkers, { online_ms: onlineMs })
    return Object.fromEntries(rows.map(({ state, workers }) => [state, workers]))
  })
}

interface EnrollItem {
  tokenHash: string
  label: string | null
  queues: Queues
  createdBy: string
  ttlMs: number
  /** The worker that may register again with the token; null: a new worker. */
  workerId: string | null
}

type EnrollOutcome = { kind: 'made'; expiresAtMs: number } | { kind: 'refused'; reason: 'unknown' | 'revoked' }

/** @param by who asked for it; null: the token is not recorded. */
export function createEnrollToken(item: EnrollItem, by: By | null = null): Command<EnrollOutcome> {
  return command('create_enroll_token', function* work(): Work<EnrollOutcome> {
    if (item.workerId !== null) {
      const worker = yield* one(sql.lockWorker, { worker_id: item.workerId })
      if (worker === undefined) return { kind: 'refused', reason: 'unknown' }
      if (worker.revoked_at !== null) return { kind: 'refused', reason: 'revoked' }
    }
    const { tokenHash, label, createdBy, ttlMs, workerId } = item
    const made = yield* exactlyOne(sql.insertEnrollToken, {
      token_hash: tokenHash,
      label,
      queues: item.queues === null ? null : JSON.stringify(item.queues),
      created_by: createdBy,
      ttl_ms: ttlMs,
      worker_id: workerId,
    })
    const subject = workerId ?? label ?? 'new worker'
    const after = { label, queues: item.queues, worker_id: workerId, ttl_seconds: ttlMs / 1000 }
    if (by !== null) yield* record(by, 'enroll_token.create', subject, null, after)
    return { kind: 'made', expiresAtMs: made.expires_at }
  })
}

export interface RegisterItem {
  enrollHash: string
  /** Names this registration. A repeat under the same name gets the same answer. */
  registerHash: string
  /** The id of a new worker. */
  newWorkerId: string
  /** The worker that the caller claims to be, and the token that proves it. */
  claim: { workerId: string; tokenHash: string | null } | null
  name: string | null
  queues: Queues
  meta: string | null
  tokenHash: string
  tokenTtlMs: number
  /** How much longer other tokens of the worker live at most. */
  graceMs: number
  auditId: string
}

export type RegisterOutcome =
  | {
      kind: 'registered'
      workerId: string
      name: string
      queues: Queues
      registeredAtMs: number
      expiresAtMs: number
    }
  | { kind: 'refused'; reason: 'token' | 'unproven' | 'revoked' }
  | { kind: 'refused'; reason: 'queue'; queue: string }

export function registerWorker(item: RegisterItem): Command<RegisterOutcome> {
  return command('register_worker', function* work(): Work<RegisterOutcome> {
    const asked = { token_hash: item.enrollHash, register_hash: item.registerHash }
    const enrolled = yield* one(sql.lockEnrollToken, asked)
    if (enrolled === undefined) return { kind: 'refused', reason: 'token' }
    const madeFor = enrolled.worker_id
    if (item.claim !== null && item.claim.workerId !== madeFor && !(yield* isProven(item.claim, madeFor))) {
      return { kind: 'refused', reason: 'unproven' }
    }
    const workerId = item.claim?.workerId ?? madeFor ?? item.newWorkerId
    const before = yield* one(sql.lockWorker, { worker_id: workerId })
    if (before !== undefined && before.revoked_at !== null) return { kind: 'refused', reason: 'revoked' }
    const allowed = enrolled.queues
    const outside = allowed === null ? undefined : item.queues?.find((queue) => !allowed.includes(queue))
    if (outside !== undefined) return { kind: 'refused', reason: 'queue', queue: outside }

    const repeated = enrolled.used_at !== null
    if (!repeated && (yield* query(sql.useEnrollToken, { ...asked, worker_id: workerId })).length === 0) {
      return { kind: 'refused', reason: 'token' }
    }
    const name = item.name ?? before?.name ?? enrolled.label ?? workerId
    return yield* writeWorker(item, { workerId, name, queues: item.queues ?? allowed, before, repeated })
  })
}

/** An enroll token that was made for a worker registers only that worker. Otherwise a token that the worker had proves it. */
function* isProven({ workerId, tokenHash }: NonNullable<RegisterItem['claim']>, madeFor: string | null): Work<boolean> {
  if (madeFor !== null || tokenHash === null) return false
  const token = yield* one(sql.findWorkerToken, { token_hash: tokenHash })
  return token?.worker_id === workerId
}

interface Registered {
  workerId: string
  name: string
  queues: Queues
  before: RowOf<typeof sql.lockWorker> | undefined
  repeated: boolean
}

function* writeWorker(item: RegisterItem, registered: Registered): Work<RegisterOutcome> {
  const { workerId, name, queues, before, repeated } = registered
  yield* query(sql.putWorker, { worker_id: workerId, name, queues: JSON.stringify(queues), meta: item.meta })
  const tokenOf = { worker_id: workerId, token_hash: item.tokenHash }
  const token = yield* exactlyOne(sql.insertWorkerToken, { ...tokenOf, ttl_ms: item.tokenTtlMs })
  if (before !== undefined) yield* query(sql.retireTokens, { ...tokenOf, grace_ms: item.graceMs })
  if (!repeated) {
    const was = before === undefined ? null : { name: before.name, queues: before.queues }
    const by = { id: item.auditId, actor: `worker:${workerId}` }
    yield* record(by, 'worker.register', workerId, was, { name, queues })
  }
  return {
    kind: 'registered',
    workerId,
    name,
    queues,
    registeredAtMs: token.created_at,
    expiresAtMs: token.expires_at,
  }
}
