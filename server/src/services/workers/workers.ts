import type {
  DetachedShape,
  EnrollTokenShape,
  Page,
  RegisteredShape,
  RenewedShape,
  RevokedShape,
  WorkerShape,
} from '@ichido/sdk/protocol'
import { IchidoError } from '@ichido/sdk/protocol'
import { type Caller, can } from '../../core/limits/roles.ts'
import { createEnrollToken, type RegisterOutcome, registerWorker } from '../../store/workers/register-worker.ts'
import * as store from '../../store/workers/workers.ts'
import { hashToken, sameHash } from '../access/access.ts'
import type { Deps } from '../deps.ts'
import { iso, isoOrNull } from '../iso.ts'
import type { RecentPolls } from '../leasing/recent-polls.ts'
import { notFound, requireId } from '../not-found.ts'
import { LastSeenWriter } from './last-seen-writer.ts'

/** Who a worker token belongs to. */
export interface WorkerIdentity {
  workerId: string
  /** The queues it may lease from; null: all of them. */
  queues: readonly string[] | null
  tokenHash: string
}

export interface Enrollment {
  label?: string | undefined
  /** The queues that the worker may lease from; without them, all. */
  queues?: readonly string[] | undefined
  ttlSeconds?: number | undefined
  /** The worker that is to register anew; without it, a new one. */
  workerId?: string | undefined
}

export interface Registration {
  enrollToken: string
  name?: string | undefined
  queues?: readonly string[] | undefined
  meta?: Record<string, unknown> | undefined
  /** Who the worker was before, and the token by which it was known, expired or not. */
  workerId?: string | undefined
  workerToken?: string | undefined
  /** Names this registration: sent again under the same name, it is answered again. */
  registerId?: string | undefined
}

export interface WorkerService {
  /** Null when the token is unknown or its time is up. */
  authenticate(token: string): Promise<WorkerIdentity | 'revoked' | null>
  /** The token is shown once, in this answer; only its hash is kept. */
  enroll(caller: Caller, enrollment: Enrollment): Promise<Omit<EnrollTokenShape, 'public_url'>>
  /** Null when the enroll token is unknown, used or its time is up. */
  register(registration: Registration): Promise<RegisteredShape | null>
  renew(worker: WorkerIdentity): Promise<RenewedShape>
  /** It stops, and is not waited for; until it is heard of again. */
  detach(worker: WorkerIdentity): Promise<DetachedShape>
  get(caller: Caller, workerId: string): Promise<WorkerShape>
  list(caller: Caller, limit: number, cursor: string | null): Promise<Page<WorkerShape>>
  /** For good: the worker's tokens are refused, and nothing it still reports counts. */
  revoke(caller: Caller, workerId: string): Promise<RevokedShape>
  /** Notes that it was heard of; written later, together with others. */
  seen(workerId: string): void
  counts(): Promise<Record<WorkerShape['state'], number>>
}

export const WORKER_TOKEN_PREFIX = 'ichido_worker_'
const ENROLL_TOKEN_PREFIX = 'ichido_enroll_'
const SECRET_BYTES = 32

export const DEFAULT_ENROLL_TTL_SECONDS = 3600
/** The seed's 7 days. */
export const WORKER_TOKEN_TTL_MS = 7 * 24 * 3600 * 1000
/** How long a token goes on when another one has taken its place: requests that are on their way still carry it. */
export const TOKEN_GRACE_MS = 10 * 60 * 1000
/** For so long a worker that slept through its token's end can prove who it was. */
const TOKEN_KEEP_MS = 90 * 24 * 3600 * 1000
/** More than the longest wait for work (50 s) and the rest between two notes of having been seen. */
export const ONLINE_MS = 90_000

/**
 * A token that was just seen is trusted for this long without asking the store. On another node a revoked worker is let
 * in for as long, but it changes nothing there: its leases are fenced, and whoever leases looks at its row again.
 */
const TRUST_MS = 1_000
const TRUSTED_MAX = 10_000

type Trusted = Map<string, { identity: WorkerIdentity; untilMs: number }>

export function createWorkerService(deps: Deps, sightings: RecentPolls): WorkerService {
  const { world, store: db } = deps
  const trusted: Trusted = new Map()
  const seen = new LastSeenWriter(world, (signs) => db.write(store.noteSeen(signs)))
  return {
    ...registration(deps),
    ...tokens(deps, trusted),
    ...administration(deps, trusted, sightings),
    seen: (workerId) => seen.add(workerId),
    async detach({ workerId }) {
      sightings.forget(workerId)
      seen.forget(workerId)
      const detached = await db.write(store.detachWorker(workerId))
      if (detached === null) throw notFound('worker', workerId)
      return { worker_id: workerId, detached_at: iso(detached.detachedAtMs) }
    },
  }
}

function registration({ world, store: db }: Deps): Pick<WorkerService, 'enroll' | 'register'> {
  return {
    async enroll(caller, enrollment) {
      if (!can(caller, 'operate')) throw new IchidoError('FORBIDDEN')
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
      if (known !== undefined && known.untilMs > world.monotonic()) return known.identity
      trusted.delete(hash)
      const found = await db.read(store.findWorkerToken(hash))
      if (found === null || !sameHash(found.tokenHash, hash)) return null
      if (found.state !== 'valid') return found.state === 'revoked' ? 'revoked' : null
      if (found.fresh) await db.write(store.settleToken(found.workerId, hash, TOKEN_GRACE_MS))
      const identity = { workerId: found.workerId, queues: found.queues, tokenHash: hash }
      if (trusted.size >= TRUSTED_MAX) trusted.clear()
      trusted.set(hash, { identity, untilMs: world.monotonic() + TRUST_MS })
      return identity
    },

    async renew(worker) {
      const token = `${WORKER_TOKEN_PREFIX}${world.secret(SECRET_BYTES)}`
      const { workerId, tokenHash } = worker
      const times = { ttlMs: WORKER_TOKEN_TTL_MS, keepMs: TOKEN_KEEP_MS }
      const made = await db.write(store.renewToken({ workerId, tokenHash, newTokenHash: hashToken(token), ...times }))
      if (made !== null) return { worker_token: token, expires_at: iso(made.expiresAtMs) }
      trusted.delete(tokenHash)
      const found = await db.read(store.findWorkerToken(tokenHash))
      throw found?.state === 'revoked' ? wasRevoked() : new IchidoError('UNAUTHENTICATED')
    },
  }
}

const NO_WORKERS = { online: 0, detached: 0, unseen: 0, revoked: 0 }

type Administration = Pick<WorkerService, 'get' | 'list' | 'revoke' | 'counts'>

function administration({ world, store: db, bus }: Deps, trusted: Trusted, sightings: RecentPolls): Administration {
  return {
    async get(caller, workerId) {
      if (!can(caller, 'readAll')) throw new IchidoError('FORBIDDEN')
      requireId('worker', workerId)
      const found = await db.read(store.findWorker(workerId))
      if (found === null) throw notFound('worker', workerId)
      return renderWorker(found)
    },

    async list(caller, limit, cursor) {
      if (!can(caller, 'readAll')) throw new IchidoError('FORBIDDEN')
      const { rows, next } = await db.read(store.listWorkers(limit, cursor))
      return { data: rows.map(renderWorker), next_cursor: next }
    },

    async revoke(caller, workerId) {
      if (!can(caller, 'operate')) throw new IchidoError('FORBIDDEN')
      requireId('worker', workerId)
      const outcome = await db.write(store.revokeWorker(workerId, caller.userId, world.uuid()))
      trusted.clear()
      sightings.forget(workerId)
      if (outcome === null) throw notFound('worker', workerId)
      const revoked = { worker_id: workerId, revoked_at: iso(outcome.revokedAtMs) }
      if (outcome.kind === 'repeated') return { ...revoked, fenced_leases: 0, revoked_tokens: 0 }
      bus.wake(outcome.orphaned.flatMap(({ jobId, queue }) => [`queue:${queue}` as const, `job:${jobId}` as const]))
      return { ...revoked, fenced_leases: outcome.leases, revoked_tokens: outcome.tokens }
    },

    counts: async () => ({ ...NO_WORKERS, ...(await db.read(store.countWorkers(ONLINE_MS))) }),
  }
}

/** Refuses a worker that asks for work of a queue it was not enrolled for. */
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

function stateOf({ revokedAtMs, detachedAtMs, lastSeenAtMs, nowMs }: store.Worker): WorkerShape['state'] {
  if (revokedAtMs !== null) return 'revoked'
  if (detachedAtMs !== null) return 'detached'
  return lastSeenAtMs !== null && lastSeenAtMs > nowMs - ONLINE_MS ? 'online' : 'unseen'
}

function renderWorker(worker: store.Worker): WorkerShape {
  return {
    worker_id: worker.workerId,
    name: worker.name,
    state: stateOf(worker),
    queues: worker.queues === null ? null : [...worker.queues],
    meta: JSON.parse(worker.meta ?? '{}') as Record<string, unknown>,
    registered_at: iso(worker.createdAtMs),
    last_seen_at: isoOrNull(worker.lastSeenAtMs),
    token_expires_at: isoOrNull(worker.tokenExpiresAtMs),
    detached_at: isoOrNull(worker.detachedAtMs),
    revoked_at: isoOrNull(worker.revokedAtMs),
    live_leases: worker.liveLeases,
  }
}
