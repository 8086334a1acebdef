import { statement } from '../statement.ts'

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

/** Takes key, user, operation, job, instant. Guarded by both: a key that was made anew or extended in between stays. */
export const deleteKeys = statement('delete_keys', {
  postgres: `DELETE FROM ichido.idempotency_keys k
    USING unnest($1::text[], $2::text[], $3::text[], $4::uuid[], $5::bigint[])
      AS t(idempotency_key, user_id, operation, job_id, at)
    WHERE k.idempotency_key = t.idempotency_key AND k.user_id = t.user_id AND k.operation = t.operation
      AND k.job_id = t.job_id AND k.expires_at <= t.at`,
  sqlite: `DELETE FROM ichido.idempotency_keys
    WHERE idempotency_key = $1 AND user_id = $2 AND operation = $3 AND job_id = $4 AND expires_at <= $5`,
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

/** Takes a maximum. Removes keys whose time is up and whose job has ended, in one statement with that look. */
export const expireKeys = statement('expire_keys', {
  postgres: `DELETE FROM ichido.idempotency_keys WHERE job_id IN (
      SELECT k.job_id FROM ichido.idempotency_keys k WHERE k.expires_at <= (SELECT now_ms()) AND NOT ${JOB_ACTIVE}
      ORDER BY k.expires_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    AND expires_at <= (SELECT now_ms()) RETURNING job_id`,
  sqlite: `DELETE FROM ichido.idempotency_keys WHERE job_id IN (
      SELECT k.job_id FROM ichido.idempotency_keys k WHERE k.expires_at <= (SELECT now_ms()) AND NOT ${JOB_ACTIVE}
      ORDER BY k.expires_at LIMIT $1) RETURNING job_id`,
})

export const KEY_COLUMNS = COLUMNS
