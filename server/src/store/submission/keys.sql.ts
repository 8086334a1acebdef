import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'

// Not EXISTS: PostgreSQL may answer that by reading all active runs there are, for a page of keys.
export const JOB_ACTIVE = `coalesce((SELECT r.state IN ('PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING')
  FROM ichido.runs r WHERE r.job_id = k.job_id AND r.latest), false)`

const COLUMNS = `k.idempotency_key, k.user_id, k.operation, k.request_hash, k.hash_version, k.job_id,
  k.response_status, k.response_body, k.created_at, k.expires_at, ${JOB_ACTIVE} AS job_active`

/** Takes key, user, operation; their users are locked. A key whose time is up still counts while its job is active. */
export const readKeys = statement('read_keys', {
  postgres: `SELECT ${COLUMNS}
    FROM unnest($1::text[], $2::text[], $3::text[]) AS t(idempotency_key, user_id, operation)
    JOIN ichido.idempotency_keys k USING (idempotency_key, user_id, operation)`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.idempotency_keys k
    WHERE idempotency_key = $1 AND user_id = $2 AND operation = $3`,
})

// The key of a job that may be retried is remembered when it goes, so that a retry knows whose it is then.
const REMEMBERED = `job_id, idempotency_key, user_id, operation, request_hash, hash_version, response_status, response_body,
  created_at`
const RETRYABLE = `coalesce((SELECT r.state IN ('FAILED', 'TIMED_OUT', 'CANCELED')
  FROM ichido.runs r WHERE r.job_id = k.job_id AND r.latest), false)`
const GONE = `idempotency_key = $1 AND user_id = $2 AND operation = $3 AND job_id = $4 AND expires_at <= $5`

/** Takes key, user, operation, job, instant. Guarded by both: a key that was made anew or extended in between stays. */
export const deleteKeys = statement('delete_keys', {
  postgres: `WITH k AS (DELETE FROM ichido.idempotency_keys k
      USING unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::bigint[])
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

/** Takes the columns of a key that was just removed, in their order. */
export const rememberKeys = statement('remember_keys', {
  postgres: `INSERT INTO ichido.expired_keys (${REMEMBERED})
    SELECT ${REMEMBERED} FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[], $6::integer[], $7::integer[],
      $8::text[], $9::bigint[]) AS k(${REMEMBERED}) WHERE ${RETRYABLE} ON CONFLICT DO NOTHING`,
  sqlite: `INSERT INTO ichido.expired_keys (${REMEMBERED})
    SELECT ${REMEMBERED} FROM (SELECT $1 AS job_id, $2 AS idempotency_key, $3 AS user_id, $4 AS operation,
      $5 AS request_hash, $6 AS hash_version, $7 AS response_status, $8 AS response_body, $9 AS created_at) k
    WHERE ${RETRYABLE} ON CONFLICT DO NOTHING`,
})

/**
 * Takes jobs that are retried; answers with the keys that they had and that were removed. Locks them: a job that is being
 * removed takes them along, and no key may come back without its job.
 */
export const readExpiredKeys = statement('read_expired_keys', {
  postgres: `SELECT job_id, idempotency_key, user_id, operation FROM ichido.expired_keys WHERE job_id = ANY($1::uuid[])
    ORDER BY job_id FOR UPDATE`,
  sqlite: 'SELECT job_id, idempotency_key, user_id, operation FROM ichido.expired_keys WHERE job_id = $1',
})

/**
 * Takes jobs that are retried, and an instant. Keys that still name them live at least so long: whoever is about to remove
 * one looks at that again when it has the row, and leaves it. Answers with the jobs whose keys these are.
 */
export const renewKeys = statement('renew_keys', {
  postgres: `WITH l AS MATERIALIZED (
      SELECT k.idempotency_key, k.user_id, k.operation, k.job_id, t.until
      FROM unnest($1::uuid[], $2::bigint[]) AS t(job_id, until) JOIN ichido.idempotency_keys k ON k.job_id = t.job_id
      ORDER BY k.idempotency_key, k.user_id, k.operation FOR UPDATE OF k)
    UPDATE ichido.idempotency_keys k SET expires_at = greatest(k.expires_at, l.until) FROM l
    WHERE k.idempotency_key = l.idempotency_key AND k.user_id = l.user_id AND k.operation = l.operation
      AND k.job_id = l.job_id
    RETURNING k.job_id`,
  sqlite: `UPDATE ichido.idempotency_keys SET expires_at = max(expires_at, $2) WHERE job_id = $1 RETURNING job_id`,
})

/** Takes jobs that are retried, and an instant. Puts their removed keys back, unless somebody has taken them. */
export const reclaimKeys = statement('reclaim_keys', {
  postgres: `INSERT INTO ichido.idempotency_keys (${REMEMBERED}, expires_at)
    SELECT ${REMEMBERED.replaceAll(/\w+/g, 'e.$&')}, t.until
    FROM unnest($1::uuid[], $2::bigint[]) AS t(job_id, until) JOIN ichido.expired_keys e ON e.job_id = t.job_id
    ORDER BY e.idempotency_key, e.user_id, e.operation
    ON CONFLICT DO NOTHING RETURNING job_id`,
  sqlite: `INSERT INTO ichido.idempotency_keys (${REMEMBERED}, expires_at)
    SELECT ${REMEMBERED}, $2 FROM ichido.expired_keys WHERE job_id = $1 ON CONFLICT DO NOTHING RETURNING job_id`,
})

/** Takes jobs whose keys are back in force. */
export const forgetExpiredKeys = statement('forget_expired_keys', {
  postgres: 'DELETE FROM ichido.expired_keys WHERE job_id = ANY($1::uuid[])',
  sqlite: 'DELETE FROM ichido.expired_keys WHERE job_id = $1',
})

/** Takes job ids; answers with the keys that name them. */
export const readKeysOfJobs = statement('read_keys_of_jobs', {
  postgres: `SELECT ${COLUMNS} FROM ichido.idempotency_keys k WHERE k.job_id = ANY($1::uuid[])`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.idempotency_keys k WHERE k.job_id = $1`,
})

/** Takes a key and, or null for all, a user. */
export const findKey = statement('find_key', {
  postgres: `SELECT ${COLUMNS} FROM ichido.idempotency_keys k
    WHERE k.idempotency_key = $1 AND ($2::text IS NULL OR k.user_id = $2) ORDER BY k.job_id DESC`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.idempotency_keys k
    WHERE k.idempotency_key = $1 AND ($2 IS NULL OR k.user_id = $2) ORDER BY k.job_id DESC`,
})

/** Takes key, user, operation, new end. Only ever later: shortening a key would break a promise already given. */
export const extendKey = statement(
  'extend_key',
  `UPDATE ichido.idempotency_keys SET expires_at = CASE WHEN expires_at > $4 THEN expires_at ELSE $4 END
    WHERE idempotency_key = $1 AND user_id = $2 AND operation = $3 RETURNING expires_at`,
)

/**
 * Takes epoch, holder and a maximum. Removes keys whose time is up and whose job has ended, in one statement with that look;
 * answers with them.
 */
export const expireKeys = statement('expire_keys', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT k.job_id FROM l CROSS JOIN ichido.idempotency_keys k
      WHERE k.expires_at <= (SELECT now_ms()) AND NOT ${JOB_ACTIVE}
      ORDER BY k.expires_at LIMIT $3 FOR UPDATE OF k SKIP LOCKED)
    DELETE FROM ichido.idempotency_keys WHERE job_id IN (SELECT job_id FROM c) AND expires_at <= (SELECT now_ms())
    RETURNING ${REMEMBERED}`,
  sqlite: `DELETE FROM ichido.idempotency_keys WHERE ${LED_SQLITE} AND job_id IN (
      SELECT k.job_id FROM ichido.idempotency_keys k WHERE k.expires_at <= (SELECT now_ms()) AND NOT ${JOB_ACTIVE}
      ORDER BY k.expires_at LIMIT $3) RETURNING ${REMEMBERED}`,
})

export const KEY_COLUMNS = COLUMNS

export const REMEMBERED_COLUMNS = REMEMBERED.split(/,\s+/)
