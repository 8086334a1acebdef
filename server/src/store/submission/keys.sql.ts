import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/term.ts'

// Not EXISTS: PostgreSQL may answer that by reading all active runs there are, for a page of keys.
export const JOB_ACTIVE = `coalesce((SELECT r.state IN ('PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING')
  FROM ichido.runs r WHERE r.job_id = k.job_id AND r.latest), false)`

export const KEY_ROW = {
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
export const KEY_COLUMNS = `k.idempotency_key, k.user_id, k.operation, k.request_hash, k.hash_version, k.job_id,
  k.response_status, k.response_body, k.created_at, k.expires_at, ${JOB_ACTIVE} AS job_active`

/** The users of the keys are locked. A key that has expired still counts while its job is active. */
export const readKeys = statement('read_keys', {
  params: { idempotency_key: 'text', user_id: 'text', operation: 'text' },
  row: KEY_ROW,
  postgres: `SELECT ${KEY_COLUMNS}
    FROM unnest($idempotency_key::text[], $user_id::text[], $operation::text[]) AS t(idempotency_key, user_id, operation)
    JOIN ichido.idempotency_keys k USING (idempotency_key, user_id, operation)`,
  sqlite: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k
    WHERE idempotency_key = $idempotency_key AND user_id = $user_id AND operation = $operation`,
})

// The key of a job that may be retried is remembered when it is removed, so that a retry can take it back.
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
  FROM ichido.runs r WHERE r.job_id = k.job_id AND r.latest), false)`
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

/** Keys that were just removed. */
export const rememberKeys = statement('remember_keys', {
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
 * The removed keys of jobs that are retried. Locks them: the removal of a job takes them along, and no key may come back
 * without its job.
 */
export const readExpiredKeys = statement('read_expired_keys', {
  params: { job_id: 'text' },
  row: { job_id: 'text', idempotency_key: 'text', user_id: 'text', operation: 'text' },
  postgres: `SELECT job_id, idempotency_key, user_id, operation FROM ichido.expired_keys WHERE job_id = ANY($job_id::uuid[])
    ORDER BY job_id FOR UPDATE`,
  sqlite: 'SELECT job_id, idempotency_key, user_id, operation FROM ichido.expired_keys WHERE job_id = $job_id',
})

/**
 * The keys of jobs that are retried live at least until this instant. A removal that is under way looks at that again when
 * it has the row, and leaves the key. Answers with the jobs whose keys these are.
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

/** Puts the removed keys of jobs that are retried back, unless another job has taken them. */
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

/** Null instead of a user: the keys of all users. */
export const findKey = statement('find_key', {
  params: { idempotency_key: 'text', user_id: 'text?' },
  row: KEY_ROW,
  postgres: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k
    WHERE k.idempotency_key = $idempotency_key AND ($user_id::text IS NULL OR k.user_id = $user_id) ORDER BY k.job_id DESC`,
  sqlite: `SELECT ${KEY_COLUMNS} FROM ichido.idempotency_keys k
    WHERE k.idempotency_key = $idempotency_key AND ($user_id IS NULL OR k.user_id = $user_id) ORDER BY k.job_id DESC`,
})

/** Only ever later: shortening a key would break a promise already given. */
export const extendKey = statement('extend_key', {
  params: { idempotency_key: 'text', user_id: 'text', operation: 'text', until: 'integer' },
  row: { expires_at: 'integer' },
  sql: `UPDATE ichido.idempotency_keys SET expires_at = CASE WHEN expires_at > $until THEN expires_at ELSE $until END
    WHERE idempotency_key = $idempotency_key AND user_id = $user_id AND operation = $operation RETURNING expires_at`,
})

/** Removes keys that have expired and whose job has ended, in one statement with that look. Answers with the keys. */
export const expireKeys = statement('expire_keys', {
  params: { epoch: 'integer', holder: 'text', max: 'integer' },
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
