import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import { each, now, one, pageOf, query, type SqlValue, select, type Values, type Work } from '../statement.ts'
import type { Term } from '../system/term.ts'
import { expireKeys, extendKey, findKey, JOB_ACTIVE, KEY_COLUMNS, KEY_ROW, rememberKeys } from './keys.sql.ts'

export interface StoredKey {
  key: string
  userId: string
  operation: string
  requestHash: string
  jobId: string
  createdAtMs: number
  expiresAtMs: number
  /** In force: its time is not up, or its job has not ended. */
  active: boolean
}

/** The same key may belong to several users and operations. */
export function findKeys(key: string, userId: string | null): Command<StoredKey[]> {
  return command('find_keys', function* work(): Work<StoredKey[]> {
    const nowMs = yield* now()
    return (yield* query(findKey, { idempotency_key: key, user_id: userId })).map((row) => toKey(row, nowMs))
  })
}

export function listKeys(
  userId: string | null,
  activeOnly: boolean,
  limit: number,
  after: string | null,
): Command<Listed<StoredKey>> {
  return command('list_keys', function* work(): Work<Listed<StoredKey>> {
    const nowMs = yield* now()
    const params: SqlValue[] = []
    const bind = (value: SqlValue) => `$${params.push(value)}`
    const where = ['true']
    let from = 'ichido.idempotency_keys k'
    let lead = 'k.job_id'
    if (userId !== null) {
      from = 'ichido.jobs j CROSS JOIN ichido.idempotency_keys k'
      lead = 'j.id'
      where.push('k.job_id = j.id', `j.user_id = ${bind(userId)}`)
    }
    if (after !== null) where.push(`${lead} < ${bind(after)}`)
    if (activeOnly) {
      where.push(`(k.expires_at > ${bind(nowMs)} OR ${JOB_ACTIVE})`)
    }
    const sql = `SELECT ${KEY_COLUMNS} FROM ${from} WHERE ${where.join(' AND ')} ORDER BY ${lead} DESC LIMIT ${limit + 1}`
    const found = (yield* select(KEY_ROW, sql, params)).map((row) => toKey(row, nowMs))
    return pageOf(found, limit, ({ jobId }) => jobId)
  })
}

export function extendKeyTo(key: StoredKey, ttlMs: number): Command<number | null> {
  return command('extend_key', function* work(): Work<number | null> {
    const until = (yield* now()) + ttlMs
    const { key: idempotency_key, userId: user_id, operation } = key
    const extend = () => one(extendKey, { idempotency_key, user_id, operation, until })
    // A submit may just have put a new key in the place of an expired one: the first look then misses both.
    const row = (yield* extend()) ?? (yield* extend())
    return row?.expires_at ?? null
  })
}

export function removeExpiredKeys(term: Term, max: number): Command<number> {
  return command('expire_keys', function* work(): Work<number> {
    const removed = yield* query(expireKeys, { ...term, max })
    yield* each(rememberKeys, removed)
    return removed.length
  })
}

function toKey(row: Values<typeof KEY_ROW>, nowMs: number): StoredKey {
  return {
    key: row.idempotency_key,
    userId: row.user_id,
    operation: row.operation,
    requestHash: row.request_hash,
    jobId: row.job_id,
    createdAtMs: row.created_at,
    expiresAtMs: row.expires_at,
    active: row.expires_at > nowMs || row.job_active,
  }
}
