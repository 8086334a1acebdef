import { DEFAULT_CONTINUATION_SECONDS } from '../../core/run/job.ts'
import { record } from '../access/audit.ts'
import { type Command, command } from '../port.ts'
import { recordMoves } from '../runs/lifecycle.ts'
import {
  each,
  flag,
  integer,
  integerOrNull,
  one,
  pageOf,
  query,
  type Row,
  text,
  textOrNull,
  type Work,
} from '../statement.ts'
import * as sql from './workers.sql.ts'

/** The queues that a worker may lease from; null: all of them. */
export type Queues = readonly string[] | null

export interface WorkerToken {
  tokenHash: string
  workerId: string
  queues: Queues
  state: 'valid' | 'expired' | 'revoked'
  /** A renewed token that nobody has used yet. */
  fresh: boolean
}

export function findWorkerToken(tokenHash: string): Command<WorkerToken | null> {
  return command('find_worker_token', function* work(): Work<WorkerToken | null> {
    const row = yield* one(sql.findWorkerToken, tokenHash)
    if (row === undefined) return null
    const expired = integer(row, 'expires_at') <= integer(row, 'now')
    return {
      tokenHash: text(row, 'token_hash'),
      workerId: text(row, 'worker_id'),
      queues: toQueues(row),
      state: integerOrNull(row, 'revoked_at') !== null ? 'revoked' : expired ? 'expired' : 'valid',
      fresh: textOrNull(row, 'replaces') !== null,
    }
  })
}

/** The first use of a renewed token shows that its answer arrived: from then on the one before is on its way out. */
export function settleToken(workerId: string, tokenHash: string, graceMs: number): Command<void> {
  return command('settle_worker_token', function* work(): Work<void> {
    yield* query(sql.lockWorker, workerId)
    yield* query(sql.retireReplaced, tokenHash, graceMs)
    yield* query(sql.settleToken, tokenHash)
  })
}

export interface RenewItem {
  workerId: string
  tokenHash: string
  newTokenHash: string
  ttlMs: number
  /** For how long a token whose time is up still tells whose it was. */
  keepMs: number
}

export function renewToken(item: RenewItem): Command<{ expiresAtMs: number } | null> {
  return command('renew_worker_token', function* work(): Work<{ expiresAtMs: number } | null> {
    yield* query(sql.lockWorker, item.workerId)
    const made = yield* one(sql.renewWorkerToken, item.tokenHash, item.newTokenHash, item.ttlMs)
    if (made === undefined) return null
    yield* query(sql.forgetTokens, item.workerId, item.keepMs)
    yield* query(sql.attachWorker, item.workerId)
    return { expiresAtMs: integer(made, 'expires_at') }
  })
}

/** A worker that was heard of, and how long ago. */
export interface Sign {
  workerId: string
  agoMs: number
}

/** @param signs sorted by worker, each once */
export function noteSeen(signs: readonly Sign[]): Command<void> {
  return command('seen_workers', function* work(): Work<void> {
    yield* each(
      sql.seenWorkers,
      signs.map(({ workerId, agoMs }) => [workerId, agoMs]),
    )
  })
}

/** The worker says that it stops. Any later sign of life takes that back. */
export function detachWorker(workerId: string): Command<{ detachedAtMs: number } | null> {
  return command('detach_worker', function* work(): Work<{ detachedAtMs: number } | null> {
    const row = yield* one(sql.detachWorker, workerId)
    return row === undefined ? null : { detachedAtMs: integer(row, 'detached_at') }
  })
}

export type RevokeOutcome =
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
    const worker = yield* one(sql.holdWorker, workerId)
    if (worker === undefined) return null
    const before = integerOrNull(worker, 'revoked_at')
    if (before !== null) return { kind: 'repeated', revokedAtMs: before }
    const revoked = yield* one(sql.revokeWorker, workerId)
    const tokens = yield* query(sql.revokeWorkerTokens, workerId)
    const fenced = yield* query(sql.fenceRuns, workerId, DEFAULT_CONTINUATION_SECONDS)
    const orphaned = fenced.filter((row) => text(row, 'state') === 'ORPHANED')
    yield* recordMoves(orphaned)
    const [was, is] = [{ name: text(worker, 'name') }, { fenced_leases: fenced.length }]
    yield* record({ id: auditId, actor }, 'worker.revoke', workerId, was, is)
    return {
      kind: 'revoked',
      revokedAtMs: integer(revoked, 'revoked_at'),
      tokens: tokens.filter((row) => flag(row, 'worked')).length,
      leases: fenced.length,
      orphaned: orphaned.map((row) => ({ jobId: text(row, 'job_id'), queue: text(row, 'queue') })),
    }
  })
}

export interface Worker {
  workerId: string
  name: string
  queues: Queues
  meta: string | null
  createdAtMs: number
  lastSeenAtMs: number | null
  /** It has said that it stops, and was not heard of since. */
  detachedAtMs: number | null
  revokedAtMs: number | null
  tokenExpiresAtMs: number | null
  liveLeases: number
  /** The store's clock when this was read. */
  nowMs: number
}

export function findWorker(workerId: string): Command<Worker | null> {
  return command('find_worker', function* work(): Work<Worker | null> {
    const row = yield* one(sql.findWorker, workerId)
    return row === undefined ? null : toWorker(row)
  })
}

/** Newest first. */
export function listWorkers(limit: number, cursor: string | null): Command<{ rows: Worker[]; next: string | null }> {
  return command('list_workers', function* work() {
    const found = (yield* query(sql.listWorkers, limit + 1, cursor)).map(toWorker)
    return pageOf(found, limit, ({ workerId }) => workerId)
  })
}

export function countWorkers(onlineMs: number): Command<Record<string, number>> {
  return command('count_workers', function* work(): Work<Record<string, number>> {
    const rows = yield* query(sql.countWorkers, onlineMs)
    return Object.fromEntries(rows.map((row) => [text(row, 'state'), integer(row, 'workers')]))
  })
}

export function toQueues(row: Row): Queues {
  return JSON.parse(textOrNull(row, 'queues') ?? 'null') as Queues
}

function toWorker(row: Row): Worker {
  return {
    workerId: text(row, 'worker_id'),
    name: text(row, 'name'),
    queues: toQueues(row),
    meta: textOrNull(row, 'meta'),
    createdAtMs: integer(row, 'created_at'),
    lastSeenAtMs: integerOrNull(row, 'last_seen_at'),
    detachedAtMs: integerOrNull(row, 'detached_at'),
    revokedAtMs: integerOrNull(row, 'revoked_at'),
    tokenExpiresAtMs: integerOrNull(row, 'token_expires_at'),
    liveLeases: integer(row, 'live_leases'),
    nowMs: integer(row, 'now'),
  }
}
