import { statement } from '../statement.ts'

/**
 * The bytes that users have stored: payloads, artifacts that are ready, and logs. The row of a user with a limit holds the
 * sum, once it has been counted. A transaction that adds or removes bytes locks that row.
 */

/** Of a row `l` of `run_logs`. A log that is archived has one row, which says how long its file is. */
export const LOG_BYTES = 'CASE WHEN l.log_ref IS NULL THEN octet_length(l.chunk) ELSE coalesce(l.end_bytes, 0) END'

/** Of an artifact that was deleted: the bytes that its user gets back. */
export const ARTIFACT_FREED = `user_id, CASE WHEN state = 'ready' THEN size_bytes END AS bytes`

const sumOf = (bytes: string, rows: string) => `coalesce((SELECT CAST(sum(${bytes}) AS bigint) FROM ${rows}), 0)`
const stored = (user: string) => `${sumOf('octet_length(j.payload)', `ichido.jobs j WHERE j.user_id = ${user}`)}
      + ${sumOf('a.size_bytes', `ichido.artifacts a WHERE a.user_id = ${user} AND a.state = 'ready'`)}
      + ${sumOf(
        LOG_BYTES,
        `ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id
          JOIN ichido.run_logs l ON l.run_id = r.id WHERE j.user_id = ${user}`,
      )}`

/** The users' rows are locked. This is a statement of its own: its snapshot must be younger than the lock. */
export const countBytes = statement('count_bytes', {
  params: { user_id: 'text' },
  row: { user_id: 'text', used_bytes: 'integer' },
  postgres: `UPDATE ichido.quotas q SET used_bytes = ${stored('q.user_id')}
    WHERE q.user_id = ANY($user_id::text[]) AND q.used_bytes IS NULL RETURNING q.user_id, q.used_bytes`,
  sqlite: `UPDATE ichido.quotas SET used_bytes = ${stored('$user_id')}
    WHERE user_id = $user_id AND used_bytes IS NULL RETURNING user_id, used_bytes`,
})

/** The same for a reader. */
export const readBytes = statement('read_bytes', {
  params: { user_id: 'text' },
  row: { used_bytes: 'integer' },
  sql: `SELECT ${stored('$user_id')} AS used_bytes`,
})

/** The users' rows are locked, in this order. A user that is not counted stays uncounted. */
export const addBytes = statement('add_bytes', {
  params: { user_id: 'text', bytes: 'integer' },
  row: {},
  postgres: `UPDATE ichido.quotas q SET used_bytes = q.used_bytes + t.bytes
    FROM unnest($user_id::text[], $bytes::bigint[]) AS t(user_id, bytes) WHERE q.user_id = t.user_id AND q.used_bytes IS NOT NULL`,
  sqlite:
    'UPDATE ichido.quotas SET used_bytes = used_bytes + $bytes WHERE user_id = $user_id AND used_bytes IS NOT NULL',
})

/** The default limits are about to change: each user that has a limit after that is counted again. */
export const forgetBytes = statement('forget_bytes', {
  params: {},
  row: {},
  postgres: `UPDATE ichido.quotas SET used_bytes = NULL WHERE user_id IN (
      SELECT user_id FROM ichido.quotas WHERE NOT custom AND used_bytes IS NOT NULL ORDER BY user_id FOR UPDATE)`,
  sqlite: 'UPDATE ichido.quotas SET used_bytes = NULL WHERE NOT custom AND used_bytes IS NOT NULL',
})

const COUNTED = 'CASE WHEN q.custom THEN q.max_bytes ELSE d.max_bytes END IS NOT NULL'
const OWNERS = "SELECT q.user_id FROM ichido.quotas q, ichido.quotas d WHERE d.user_id = '*'"

/**
 * Locks the users that are counted, and shares the rows of the others. The users are sorted. The rows are the users that
 * another transaction has locked. Nothing here waits.
 */
export const lockOwners = statement('lock_owners', {
  params: { user_id: 'text' },
  row: { user_id: 'text' },
  postgres: `WITH c AS MATERIALIZED (
      ${OWNERS} AND q.user_id = ANY($user_id::text[]) AND ${COUNTED} ORDER BY q.user_id FOR UPDATE OF q SKIP LOCKED),
    s AS MATERIALIZED (
      ${OWNERS} AND q.user_id = ANY($user_id::text[]) AND NOT (${COUNTED}) ORDER BY q.user_id FOR SHARE OF q, d SKIP LOCKED)
    SELECT user_id FROM ichido.quotas WHERE user_id = ANY($user_id::text[])
      AND user_id NOT IN (SELECT user_id FROM c UNION ALL SELECT user_id FROM s)`,
  sqlite: [],
})

/** `job_ids` is a JSON array. */
export const readOwners = statement('read_owners', {
  params: { job_ids: 'text' },
  row: { id: 'text', user_id: 'text' },
  postgres: `SELECT id, user_id FROM ichido.jobs
    WHERE id IN (SELECT t.id::uuid FROM json_array_elements_text($job_ids::json) AS t(id))`,
  sqlite: 'SELECT id, user_id FROM ichido.jobs WHERE id IN (SELECT t.value FROM json_each($job_ids) t)',
})
