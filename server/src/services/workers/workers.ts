import {
  DEFAULT_ENROLL_TTL_SECONDS,
  type DetachedShape,
  type EnrollTokenShape,
  IchidoError,
  type Page,
  type RegisteredShape,
  type RenewedShape,
  type RevokedShape,
  type WorkerShape,
} from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Caller } from '../../core/limits/roles.ts'
import * as store from '../../store/workers/workers.ts'
import { createEnrollToken, type RegisterOutcome, registerWorker, type Sign } from '../../store/workers/workers.ts'
import { hashToken, sameHash, TrustedTokens } from '../access/access.ts'
import { iso, isoOrNull, notFound, renderPage, requireAbility, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import type { RecentPolls } from '../leasing/recent-polls.ts'

/** The owner of a worker token. */
export interface WorkerIdentity {
  workerId: string
  /** The queues that it may lease from; null: all. */
  queues: readonly string[] | null
  tokenHash: string
}

export interface Enrollment {
  label?: string | undefined
  /** The queues that the worker may lease from; without them, all. */
  queues?: readonly string[] | undefined
  ttlSeconds?: number | undefined
  /** The worker that may register again; without it, a new worker. */
  workerId?: string | undefined
}

export interface Registration {
  enrollToken: string
  name?: string | undefined
  queues?: readonly string[] | undefined
  meta?: Record<string, unknown> | undefined
  /** The earlier id of the worker, and its last token, which may have expired. */
  workerId?: string | undefined
  workerToken?: string | undefined
  /** Identifies this registration, so that a repeat gets the same answer. */
  registerId?: string | undefined
}

export interface WorkerService {
  /** Null if the token is unknown or has expired. */
  authenticate(token: string): Promise<WorkerIdentity | 'revoked' | null>
  /** Only this answer has the token; the store keeps its hash. */
  enroll(caller: Caller, enrollment: Enrollment): Promise<Omit<EnrollTokenShape, 'public_url'>>
  /** Null if the enroll token is unknown, used or has expired. */
  register(registration: Registration): Promise<RegisteredShape | null>
  /** `meta` replaces the facts about the machine. */
  renew(worker: WorkerIdentity, meta?: Registration['meta']): Promise<RenewedShape>
  /** The worker stops. Its next call makes it online again. */
  detach(worker: WorkerIdentity): Promise<DetachedShape>
  get(caller: Caller, workerId: string): Promise<WorkerShape>
  list(caller: Caller, limit: number, cursor: string | null): Promise<Page<WorkerShape>>
  /** Permanent: the tokens of the worker are refused, and its later reports do not count. */
  revoke(caller: Caller, workerId: string): Promise<RevokedShape>
  /** The worker gets no new runs, also from other nodes. It keeps what it holds. */
  drain(caller: Caller, workerId: string): Promise<WorkerShape>
  /** Ends the drain. */
  resume(caller: Caller, workerId: string): Promise<WorkerShape>
  /** Whether the worker drains, as far as this node has heard: it hears of each worker every ten seconds. */
  drains(workerId: string): boolean
  /** Notes that the worker called. The store gets this later, together with others. */
  seen(workerId: string): void
  counts(): Promise<Record<WorkerShape['state'], number>>
}

export const WORKER_TOKEN_PREFIX = 'ichido_worker_'
const ENROLL_TOKEN_PREFIX = 'ichido_enroll_'
const SECRET_BYTES = 32

/** The seed's 7 days. */
export const WORKER_TOKEN_TTL_MS = 7 * 24 * 3600 * 1000
/** How long a renewed token still works, because requests on their way still have it. */
export const TOKEN_GRACE_MS = 10 * 60 * 1000
/** For this long an expired token proves the identity of a worker that was offline. */
const TOKEN_KEEP_MS = 90 * 24 * 3600 * 1000
/** More than the longest wait for work (50 s) plus `SEEN_EVERY_MS`. */
export const ONLINE_MS = 90_000
/** The store hears of the same worker only this often. */
const SEEN_EVERY_MS = 10_000
/** Sightings wait this long for others, to share a transaction. */
const GATHER_MS = 1_000

/**
 * Another node may let a revoked worker in for a moment. The worker changes nothing there: its leases are fenced, and leasing
 * checks its row again.
 */
type Trusted = TrustedTokens<WorkerIdentity>

export function createWorkerService(deps: Deps, recentPolls: RecentPolls): WorkerService {
  const { world, store: db } = deps
  const trusted: Trusted = new TrustedTokens(world)
  const draining = new Set<string>()
  const heard = (workerId: string, drains: boolean) =>
    void (drains ? draining.add(workerId) : draining.delete(workerId))
  const seen = new LastSeenWriter(world, async (signs) => {
    for (const [workerId, drains] of await db.write(store.noteSeen(signs))) heard(workerId, drains)
  })
  return {
    ...registration(deps),
    ...tokens(deps, trusted),
    ...administration(deps, trusted, recentPolls),
    ...drains(deps, heard),
    drains: (workerId) => draining.has(workerId),
    seen: (workerId) => seen.add(workerId),
    async detach({ workerId }) {
      recentPolls.forget(workerId)
      seen.forget(workerId)
      draining.delete(workerId)
      const detached = await db.write(store.detachWorker(workerId))
      if (detached === null) throw notFound('worker', workerId)
      return { worker_id: workerId, detached_at: iso(detached.detachedAtMs) }
    },
  }
}

function registration({ world, store: db }: Deps): Pick<WorkerService, 'enroll' | 'register'> {
  return {
    async enroll(caller, enrollment) {
      requireAbility(caller, 'operate')
      const { label = null, queues = null, ttlSeconds = DEFAULT_ENROLL_TTL_SECONDS, workerId = null } = enrollment
      if (workerId !== null) requireId('worker', workerId)
      const token = `${ENROLL_TOKEN_PREFIX}${world.secret(SECRET_BYTES)}`
      const [tokenHash, createdBy, ttlMs] = [hashToken(token), caller.userId, Math.round(ttlSeconds * 1000)]
      const item = { tokenHash, label, queues, createdBy, ttlMs, workerId }
      const made = await db.write(createEnrollToken(item, { id: world.uuid(), actor: createdBy }))
      if (made.kind === 'made') {
        const expires_at = iso(made.expiresAtMs)
        return { enroll_token: token, expires_at, ttl_seconds: ttlSeconds, label, queues: queues && [...queues] }
      }
      throw made.reason === 'unknown' ? notFound('worker', workerId ?? '') : wasRevoked()
    },

    async register({ enrollToken, name, queues, meta, workerId, workerToken, registerId }) {
      const token = `${WORKER_TOKEN_PREFIX}${world.secret(SECRET_BYTES)}`
      const tokenOfBefore = workerToken === undefined ? null : hashToken(workerToken)
      const outcome = await db.write(
        registerWorker({
          enrollHash: hashToken(enrollToken),
          registerHash: hashToken(registerId ?? world.secret(SECRET_BYTES)),
          newWorkerId: world.uuid(),
          claim: workerId === undefined ? null : { workerId, tokenHash: tokenOfBefore },
          name: name ?? null,
          queues: queues ?? null,
          meta: meta === undefined ? null : JSON.stringify(meta),
          tokenHash: hashToken(token),
          tokenTtlMs: WORKER_TOKEN_TTL_MS,
          graceMs: TOKEN_GRACE_MS,
          auditId: world.uuid(),
        }),
      )
      if (outcome.kind === 'refused' && outcome.reason === 'token') return null
      return renderRegistered(outcome, token)
    },
  }
}

function tokens({ world, store: db }: Deps, trusted: Trusted): Pick<WorkerService, 'authenticate' | 'renew'> {
  return {
    async authenticate(token) {
      const hash = hashToken(token)
      const known = trusted.get(hash)
      if (known !== null) return known
      trusted.forget(hash)
      const found = await db.read(store.findWorkerToken(hash))
      if (found === null || !sameHash(found.tokenHash, hash)) return null
      if (found.state !== 'valid') return found.state === 'revoked' ? 'revoked' : null
      if (found.fresh) await db.write(store.settleToken(found.workerId, hash, TOKEN_GRACE_MS))
      const identity = { workerId: found.workerId, queues: found.queues, tokenHash: hash }
      trusted.keep(hash, identity)
      return identity
    },

    async renew(worker, meta) {
      const token = `${WORKER_TOKEN_PREFIX}${world.secret(SECRET_BYTES)}`
      const { workerId, tokenHash } = worker
      const times = { ttlMs: WORKER_TOKEN_TTL_MS, keepMs: TOKEN_KEEP_MS }
      const facts = { meta: meta === undefined ? null : JSON.stringify(meta), ...times }
      const made = await db.write(store.renewToken({ workerId, tokenHash, newTokenHash: hashToken(token), ...facts }))
      if (made !== null) return { worker_token: token, expires_at: iso(made.expiresAtMs) }
      trusted.forget(tokenHash)
      const found = await db.read(store.findWorkerToken(tokenHash))
      throw found?.state === 'revoked' ? wasRevoked() : new IchidoError('UNAUTHENTICATED')
    },
  }
}

const NO_WORKERS = { online: 0, detached: 0, unseen: 0, revoked: 0 }

type Administration = Pick<WorkerService, 'get' | 'list' | 'revoke' | 'counts'>

function administration({ world, store: db, bus }: Deps, trusted: Trusted, recentPolls: RecentPolls): Administration {
  return {
    async get(caller, workerId) {
      requireAbility(caller, 'readAll')
      requireId('worker', workerId)
      const found = await db.read(store.findWorker(workerId))
      if (found === undefined) throw notFound('worker', workerId)
      return renderWorker(found)
    },

    async list(caller, limit, cursor) {
      requireAbility(caller, 'readAll')
      return renderPage(await db.read(store.listWorkers(limit, cursor)), renderWorker)
    },

    async revoke(caller, workerId) {
      requireAbility(caller, 'operate')
      requireId('worker', workerId)
      const outcome = await db.write(store.revokeWorker(workerId, caller.userId, world.uuid()))
      trusted.forgetAll()
      recentPolls.forget(workerId)
      if (outcome === null) throw notFound('worker', workerId)
      const revoked = { worker_id: workerId, revoked_at: iso(outcome.revokedAtMs) }
      if (outcome.kind === 'repeated') return { ...revoked, fenced_leases: 0, revoked_tokens: 0 }
      bus.wake(outcome.orphaned.flatMap(({ jobId, queue }) => [`queue:${queue}` as const, `job:${jobId}` as const]))
      return { ...revoked, fenced_leases: outcome.leases, revoked_tokens: outcome.tokens }
    },

    counts: async () => ({ ...NO_WORKERS, ...(await db.read(store.countWorkers(ONLINE_MS))) }),
  }
}

function drains(
  { world, store: db, bus }: Deps,
  heard: (workerId: string, drains: boolean) => void,
): Pick<WorkerService, 'drain' | 'resume'> {
  async function change(make: typeof store.drainWorker, caller: Caller, workerId: string): Promise<WorkerShape> {
    requireAbility(caller, 'operate')
    requireId('worker', workerId)
    const outcome = await db.write(make(workerId, { actor: caller.userId, id: world.uuid() }))
    if (outcome === null) throw notFound('worker', workerId)
    if (outcome.kind === 'revoked') throw wasRevoked()
    heard(workerId, outcome.worker.draining_since !== null)
    return renderWorker(outcome.worker)
  }
  return {
    drain: (caller, workerId) => change(store.drainWorker, caller, workerId),
    async resume(caller, workerId) {
      const worker = await change(store.resumeWorker, caller, workerId)
      bus.wake([`worker:${workerId}`])
      return worker
    },
  }
}

/** Refuses a lease from a queue that the worker was not enrolled for. */
export function requireQueues(worker: Pick<WorkerIdentity, 'queues'>, queues: readonly string[]): void {
  const { queues: allowed } = worker
  const outside = allowed === null ? undefined : queues.find((queue) => !allowed.includes(queue))
  if (outside !== undefined) throw outsideQueue(outside)
}

export function wasRevoked(): IchidoError {
  return new IchidoError('FORBIDDEN', 'This worker was revoked')
}

function outsideQueue(queue: string): IchidoError {
  return new IchidoError('FORBIDDEN', `This worker was not enrolled for the queue ${queue}`, { queue })
}

function renderRegistered(outcome: RegisterOutcome, token: string): RegisteredShape {
  if (outcome.kind === 'refused') {
    if (outcome.reason === 'queue') throw outsideQueue(outcome.queue)
    if (outcome.reason === 'revoked') throw wasRevoked()
    throw new IchidoError('FORBIDDEN', 'The caller must prove that it is this worker: send its last worker_token')
  }
  return {
    worker_id: outcome.workerId,
    worker_token: token,
    expires_at: iso(outcome.expiresAtMs),
    name: outcome.name,
    queues: outcome.queues === null ? null : [...outcome.queues],
    registered_at: iso(outcome.registeredAtMs),
  }
}

function stateOf({ revoked_at, detached_at, last_seen_at, now }: store.Worker): WorkerShape['state'] {
  if (revoked_at !== null) return 'revoked'
  if (detached_at !== null) return 'detached'
  return last_seen_at !== null && last_seen_at > now - ONLINE_MS ? 'online' : 'unseen'
}

function renderWorker(worker: store.Worker): WorkerShape {
  return {
    worker_id: worker.worker_id,
    name: worker.name,
    state: stateOf(worker),
    queues: worker.queues === null ? null : [...worker.queues],
    meta: JSON.parse(worker.meta ?? '{}') as Record<string, unknown>,
    registered_at: iso(worker.created_at),
    last_seen_at: isoOrNull(worker.last_seen_at),
    token_expires_at: isoOrNull(worker.token_expires_at),
    detached_at: isoOrNull(worker.detached_at),
    draining_since: isoOrNull(worker.draining_since),
    revoked_at: isoOrNull(worker.revoked_at),
    live_leases: worker.live_leases,
    holds: worker.holds.map((run) => ({
      ...run,
      assigned_at: iso(run.assigned_at),
      started_at: isoOrNull(run.started_at),
    })),
  }
}

/** Collects the times when workers called, so that no call waits for this write. */
export class LastSeenWriter {
  readonly #world: Pick<World, 'monotonic' | 'after'>
  readonly #write: (signs: Sign[]) => Promise<void>
  readonly #notedMs = new Map<string, number>()
  readonly #waiting = new Set<string>()

  constructor(world: Pick<World, 'monotonic' | 'after'>, write: (signs: Sign[]) => Promise<void>) {
    this.#world = world
    this.#write = write
  }

  add(workerId: string): void {
    const nowMs = this.#world.monotonic()
    const notedMs = this.#notedMs.get(workerId)
    if (notedMs !== undefined && nowMs - notedMs < SEEN_EVERY_MS) return
    this.#notedMs.set(workerId, nowMs)
    if (this.#waiting.size === 0) this.#world.after(GATHER_MS, () => this.#flush())
    this.#waiting.add(workerId)
  }

  /** The worker has detached: earlier calls do not make it online, and its next call does so at once. */
  forget(workerId: string): void {
    this.#waiting.delete(workerId)
    this.#notedMs.delete(workerId)
  }

  #flush(): void {
    const ids = [...this.#waiting].sort()
    this.#waiting.clear()
    const nowMs = this.#world.monotonic()
    const signs = ids.map((workerId) => ({
      workerId,
      agoMs: Math.ceil(nowMs - (this.#notedMs.get(workerId) ?? nowMs)),
    }))
    for (const [id, notedMs] of this.#notedMs) if (nowMs - notedMs >= SEEN_EVERY_MS) this.#notedMs.delete(id)
    // If the write fails, the next request of the worker is written instead.
    this.#write(signs).catch(() => {
      for (const id of ids) this.#notedMs.delete(id)
    })
  }
}
