import { type Command, command, type Listed, pageOf } from '../port.ts'
import { each, now, one, query, type SqlValue, select, statement, type Values, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'

// Not EXISTS: for a page of keys, PostgreSQL may answer that by reading all active runs.
const JOB_ACTIVE = `(coalesce((SELECT r.job_id FROM ichido.ready r WHERE r.job_id = k.job_id),
  (SELECT r.job_id FROM ichido.held r WHERE r.job_id = k.job_id)) IS NOT NULL)`

const KEY_ROW = {
  idempotency_key: 'text',
  user_id: 'text',
  operation: 'text',
  request_hash: 'text',
  hash_version: 'integer',
  job_id: 'text',
  response_status: 'integer',
  response_body: 'text',
  created_at: 'integer',
  expires_at: 'integer',
  job_active: 'flag',
} as const
const KEY_COLUMNS = `k.idempotency_key, k.user_id, k.operation, k.request_hash, k.hash_version, k.job_id,
  k.response_status, k.response_body, k.created_at, k.expires_at, ${JOB_ACTIVE} AS job_active`

/** The users of the keys are locked. An expired key still counts while its job is active. */
export const readKeys = statement('read_keys', {
  params: { idempotency_key: 'text', user_id: 'text', operation: 'text' },
  row: KEY_ROW,
  postgres: `SELECT ${KEY_COLUMNS}
    FROM unnest($idempotency_key::text[], $user_id::text[], $operation::text[]) AS t(idempotency_key, user_id, operation)
    JOIN ichido.idempotency_keys k USING (idempotency_key, user_id, operation)`,
  sqlite: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k
    WHERE idempotency_key = $idempotency_key AND user_id = $user_id AND operation = $operation`,
})

// When the key of a job that may be retried is removed, it is remembered, so that a retry can take it back.
const REMEMBERED = `job_id, idempotency_key, user_id, operation, request_hash, hash_version, response_status, response_body,
  created_at`
const REMEMBERED_ROW = {
  job_id: 'text',
  idempotency_key: 'text',
  user_id: 'text',
  operation: 'text',
  request_hash: 'text',
  hash_version: 'integer',
  response_status: 'integer',
  response_body: 'text',
  created_at: 'integer',
} as const
const RETRYABLE = `coalesce((SELECT r.state IN ('FAILED', 'TIMED_OUT', 'CANCELED')
  FROM ichido.ended r WHERE r.job_id = k.job_id AND r.latest), false)`
const GONE = `idempotency_key = $idempotency_key AND user_id = $user_id AND operation = $operation
  AND job_id = $job_id AND expires_at <= $at`

/** Guarded by job and instant: a key that was made anew or extended in between stays. */
export const deleteKeys = statement('delete_keys', {
  params: { idempotency_key: 'text', user_id: 'text', operation: 'text', job_id: 'text', at: 'integer' },
  row: {},
  postgres: `WITH k AS (DELETE FROM ichido.idempotency_keys k
      USING unnest($idempotency_key::text[], $user_id::text[], $operation::text[], $job_id::uuid[], $at::bigint[])
        AS t(idempotency_key, user_id, operation, job_id, at)
      WHERE k.idempotency_key = t.idempotency_key AND k.user_id = t.user_id AND k.operation = t.operation
        AND k.job_id = t.job_id AND k.expires_at <= t.at
      RETURNING ${REMEMBERED.replaceAll(/\w+/g, 'k.$&')})
    INSERT INTO ichido.expired_keys (${REMEMBERED}) SELECT ${REMEMBERED} FROM k WHERE ${RETRYABLE} ON CONFLICT DO NOTHING`,
  sqlite: [
    `INSERT INTO ichido.expired_keys (${REMEMBERED})
      SELECT ${REMEMBERED} FROM ichido.idempotency_keys k WHERE ${GONE} AND ${RETRYABLE} ON CONFLICT DO NOTHING`,
    `DELETE FROM ichido.idempotency_keys WHERE ${GONE}`,
  ],
})

/** For keys that were just removed. */
const rememberKeys = statement('remember_keys', {
  params: REMEMBERED_ROW,
  row: {},
  postgres: `INSERT INTO ichido.expired_keys (${REMEMBERED})
    SELECT ${REMEMBERED} FROM unnest($job_id::uuid[], $idempotency_key::text[], $user_id::text[], $operation::text[], $request_hash::text[], $hash_version::integer[], $response_status::integer[],
      $response_body::text[], $created_at::bigint[]) AS k(${REMEMBERED}) WHERE ${RETRYABLE} ON CONFLICT DO NOTHING`,
  sqlite: `INSERT INTO ichido.expired_keys (${REMEMBERED})
    SELECT ${REMEMBERED} FROM (SELECT $job_id AS job_id, $idempotency_key AS idempotency_key, $user_id AS user_id, $operation AS operation,
      $request_hash AS request_hash, $hash_version AS hash_version, $response_status AS response_status, $response_body AS response_body, $created_at AS created_at) k
    WHERE ${RETRYABLE} ON CONFLICT DO NOTHING`,
})

/**
 * The removed keys of jobs that are retried. It locks them, because the removal of a job removes them, too, and no key may come
 * back without its job.
 */
export const readExpiredKeys = statement('read_expired_keys', {
  params: { job_id: 'text' },
  row: { job_id: 'text', idempotency_key: 'text', user_id: 'text', operation: 'text' },
  postgres: `SELECT job_id, idempotency_key, user_id, operation FROM ichido.expired_keys WHERE job_id = ANY($job_id::uuid[])
    ORDER BY job_id FOR UPDATE`,
  sqlite: 'SELECT job_id, idempotency_key, user_id, operation FROM ichido.expired_keys WHERE job_id = $job_id',
})

/**
 * Keeps the keys of jobs that are retried at least until this instant, and answers with the jobs. A running removal checks the
 * instant again when it has the row, and leaves the key.
 */
export const renewKeys = statement('renew_keys', {
  params: { job_id: 'text', until: 'integer' },
  row: { job_id: 'text' },
  postgres: `WITH l AS MATERIALIZED (
      SELECT k.idempotency_key, k.user_id, k.operation, k.job_id, t.until
      FROM unnest($job_id::uuid[], $until::bigint[]) AS t(job_id, until) JOIN ichido.idempotency_keys k ON k.job_id = t.job_id
      ORDER BY k.idempotency_key, k.user_id, k.operation FOR UPDATE OF k)
    UPDATE ichido.idempotency_keys k SET expires_at = greatest(k.expires_at, l.until) FROM l
    WHERE k.idempotency_key = l.idempotency_key AND k.user_id = l.user_id AND k.operation = l.operation
      AND k.job_id = l.job_id
    RETURNING k.job_id`,
  sqlite: `UPDATE ichido.idempotency_keys SET expires_at = max(expires_at, $until) WHERE job_id = $job_id RETURNING job_id`,
})

/** Restores the removed keys of jobs that are retried, unless another job has taken them. */
export const reclaimKeys = statement('reclaim_keys', {
  params: { job_id: 'text', until: 'integer' },
  row: { job_id: 'text' },
  postgres: `INSERT INTO ichido.idempotency_keys (${REMEMBERED}, expires_at)
    SELECT ${REMEMBERED.replaceAll(/\w+/g, 'e.$&')}, t.until
    FROM unnest($job_id::uuid[], $until::bigint[]) AS t(job_id, until) JOIN ichido.expired_keys e ON e.job_id = t.job_id
    ORDER BY e.idempotency_key, e.user_id, e.operation
    ON CONFLICT DO NOTHING RETURNING job_id`,
  sqlite: `INSERT INTO ichido.idempotency_keys (${REMEMBERED}, expires_at)
    SELECT ${REMEMBERED}, $until FROM ichido.expired_keys WHERE job_id = $job_id ON CONFLICT DO NOTHING RETURNING job_id`,
})

/** For jobs whose keys are back in force. */
export const forgetExpiredKeys = statement('forget_expired_keys', {
  params: { job_id: 'text' },
  row: {},
  postgres: 'DELETE FROM ichido.expired_keys WHERE job_id = ANY($job_id::uuid[])',
  sqlite: 'DELETE FROM ichido.expired_keys WHERE job_id = $job_id',
})

export const readKeysOfJobs = statement('read_keys_of_jobs', {
  params: { job_id: 'text' },
  row: KEY_ROW,
  postgres: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k WHERE k.job_id = ANY($job_id::uuid[])`,
  sqlite: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k WHERE k.job_id = $job_id`,
})

/** Null instead of a user means the keys of all users. */
const findKey = statement('find_key', {
  params: { idempotency_key: 'text', user_id: 'text?' },
  row: KEY_ROW,
  postgres: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k
    WHERE k.idempotency_key = $idempotency_key AND ($user_id::text IS NULL OR k.user_id = $user_id) ORDER BY k.job_id DESC`,
  sqlite: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k
    WHERE k.idempotency_key = $idempotency_key AND ($user_id IS NULL OR k.user_id = $user_id) ORDER BY k.job_id DESC`,
})

/** Never earlier: the caller was promised the later expiry. */
const extendKey = statement('extend_key', {
  params: { idempotency_key: 'text', user_id: 'text', operation: 'text', until: 'integer' },
  row: { expires_at: 'integer' },
  sql: `UPDATE ichido.idempotency_keys SET expires_at = CASE WHEN expires_at > $until THEN expires_at ELSE $until END
    WHERE idempotency_key = $idempotency_key AND user_id = $user_id AND operation = $operation RETURNING expires_at`,
})

/** Removes expired keys whose job has ended, checked in the same statement. Answers with the keys. */
const expireKeys = statement('expire_keys', {
  params: { ...TERM, max: 'integer' },
  row: REMEMBERED_ROW,
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT k.job_id FROM l CROSS JOIN ichido.idempotency_keys k
      WHERE k.expires_at <= (SELECT now_ms()) AND NOT ${JOB_ACTIVE}
      ORDER BY k.expires_at LIMIT $max FOR UPDATE OF k SKIP LOCKED)
    DELETE FROM ichido.idempotency_keys WHERE job_id IN (SELECT job_id FROM c) AND expires_at <= (SELECT now_ms())
    RETURNING ${REMEMBERED}`,
  sqlite: `DELETE FROM ichido.idempotency_keys WHERE ${LED_SQLITE} AND job_id IN (
      SELECT k.job_id FROM ichido.idempotency_keys k WHERE k.expires_at <= (SELECT now_ms()) AND NOT ${JOB_ACTIVE}
      ORDER BY k.expires_at LIMIT $max) RETURNING ${REMEMBERED}`,
})

export interface StoredKey {
  key: string
  userId: string
  operation: string
  requestHash: string
  jobId: string
  createdAtMs: number
  expiresAtMs: number
  /** The key has not expired, or its job has not ended. */
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
    // A submit may just have replaced an expired key: the first statement then misses both keys.
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
