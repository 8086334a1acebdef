import { type By, record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { integer, integerOrNull, one, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import * as sql from './workers.sql.ts'
import { type Queues, toQueues } from './workers.ts'

export interface EnrollItem {
  tokenHash: string
  label: string | null
  queues: Queues
  createdBy: string
  ttlMs: number
  /** The worker that may register anew with it; null: a new one. */
  workerId: string | null
}

export type EnrollOutcome = { kind: 'made'; expiresAtMs: number } | { kind: 'refused'; reason: 'unknown' | 'revoked' }

/** @param by who asked for it; null: nobody is to be told of. */
export function createEnrollToken(item: EnrollItem, by: By | null = null): Command<EnrollOutcome> {
  return command('create_enroll_token', function* work(): Work<EnrollOutcome> {
    if (item.workerId !== null) {
      const worker = yield* one(sql.lockWorker, item.workerId)
      if (worker === undefined) return { kind: 'refused', reason: 'unknown' }
      if (integerOrNull(worker, 'revoked_at') !== null) return { kind: 'refused', reason: 'revoked' }
    }
    const queues = item.queues === null ? null : JSON.stringify(item.queues)
    const { tokenHash, label, createdBy, ttlMs, workerId } = item
    const made = yield* one(sql.insertEnrollToken, tokenHash, label, queues, createdBy, ttlMs, workerId)
    const subject = workerId ?? label ?? 'new worker'
    const after = { label, queues: item.queues, worker_id: workerId, ttl_seconds: ttlMs / 1000 }
    if (by !== null) yield* record(by, 'enroll_token.create', subject, null, after)
    return { kind: 'made', expiresAtMs: integer(made, 'expires_at') }
  })
}

export interface RegisterItem {
  enrollHash: string
  /** Names this registration: asked again under the same name, it is answered again. */
  registerHash: string
  /** The id of a worker that is new. */
  newWorkerId: string
  /** The worker that the caller says it is, and the token by which it was known. */
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
    const enrolled = yield* one(sql.lockEnrollToken, item.enrollHash, item.registerHash)
    if (enrolled === undefined) return { kind: 'refused', reason: 'token' }
    const madeFor = textOrNull(enrolled, 'worker_id')
    if (item.claim !== null && item.claim.workerId !== madeFor && !(yield* isProven(item.claim, madeFor))) {
      return { kind: 'refused', reason: 'unproven' }
    }
    const workerId = item.claim?.workerId ?? madeFor ?? item.newWorkerId
    const before = yield* one(sql.lockWorker, workerId)
    if (integerOrNull(before, 'revoked_at') !== null) return { kind: 'refused', reason: 'revoked' }
    const allowed = toQueues(enrolled)
    const outside = allowed === null ? undefined : item.queues?.find((queue) => !allowed.includes(queue))
    if (outside !== undefined) return { kind: 'refused', reason: 'queue', queue: outside }

    const repeated = integerOrNull(enrolled, 'used_at') !== null
    if (!repeated && (yield* query(sql.useEnrollToken, item.enrollHash, item.registerHash, workerId)).length === 0) {
      return { kind: 'refused', reason: 'token' }
    }
    const name = item.name ?? textOrNull(before, 'name') ?? textOrNull(enrolled, 'label') ?? workerId
    return yield* writeWorker(item, { workerId, name, queues: item.queues ?? allowed, before, repeated })
  })
}

/** An enroll token that was made for a worker registers that one; otherwise a worker is known by a token it had. */
function* isProven({ workerId, tokenHash }: NonNullable<RegisterItem['claim']>, madeFor: string | null): Work<boolean> {
  if (madeFor !== null || tokenHash === null) return false
  const token = yield* one(sql.findWorkerToken, tokenHash)
  return textOrNull(token, 'worker_id') === workerId
}

interface Registered {
  workerId: string
  name: string
  queues: Queues
  before: Row | undefined
  repeated: boolean
}

function* writeWorker(item: RegisterItem, registered: Registered): Work<RegisterOutcome> {
  const { workerId, name, queues, before, repeated } = registered
  yield* query(sql.putWorker, workerId, name, JSON.stringify(queues), item.meta)
  const token = yield* one(sql.insertWorkerToken, item.tokenHash, workerId, item.tokenTtlMs)
  if (before !== undefined) yield* query(sql.retireTokens, workerId, item.tokenHash, item.graceMs)
  if (!repeated) {
    const by = { id: item.auditId, actor: `worker:${workerId}` }
    yield* record(by, 'worker.register', workerId, before === undefined ? null : describe(before), { name, queues })
  }
  return {
    kind: 'registered',
    workerId,
    name,
    queues,
    registeredAtMs: integer(token, 'created_at'),
    expiresAtMs: integer(token, 'expires_at'),
  }
}

function describe(worker: Row) {
  return { name: text(worker, 'name'), queues: toQueues(worker) }
}
