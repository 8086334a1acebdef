import { statement } from '../statement.ts'

/**
 * What users have stored: payloads, artifacts that are ready, and logs. A user's row has the sum, if it has been counted: only a
 * user with a limit is. Whoever adds or removes bytes holds that row.
 */

/** Of a row `l` of `run_logs`. A log that is archived has one row, which says how long its file is. */
export const LOG_BYTES = 'CASE WHEN l.log_ref IS NULL THEN octet_length(l.chunk) ELSE coalesce(l.end_bytes, 0) END'

/** Of an artifact that was deleted: what its user has back. */
export const ARTIFACT_FREED = `user_id, CASE WHEN state = 'ready' THEN size_bytes END AS bytes`

const sumOf = (bytes: string, rows: string) => `coalesce((SELECT CAST(sum(${bytes}) AS bigint) FROM ${rows}), 0)`
const stored = (user: string) => `${sumOf('octet_length(j.payload)', `ichido.jobs j WHERE j.user_id = ${user}`)}
      + ${sumOf('a.size_bytes', `ichido.artifacts a WHERE a.user_id = ${user} AND a.state = 'ready'`)}
      + ${sumOf(
        LOG_BYTES,
        `ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id
          JOIN ichido.run_logs l ON l.run_id = r.id WHERE j.user_id = ${user}`,
      )}`

/** Takes users whose rows are locked. A statement of its own: its snapshot must be younger than the lock. */
export const countBytes = statement('count_bytes', {
  postgres: `UPDATE ichido.quotas q SET used_bytes = ${stored('q.user_id')}
    WHERE q.user_id = ANY($1::text[]) AND q.used_bytes IS NULL RETURNING q.user_id, q.used_bytes`,
  sqlite: `UPDATE ichido.quotas SET used_bytes = ${stored('$1')}
    WHERE user_id = $1 AND used_bytes IS NULL RETURNING user_id, used_bytes`,
})

/** Takes a user: the same for who only looks. */
export const readBytes = statement('read_bytes', `SELECT ${stored('$1')} AS used_bytes`)

/** Takes user, change; of users whose rows are locked, sorted. One that is not counted stays so. */
export const addBytes = statement('add_bytes', {
  postgres: `UPDATE ichido.quotas q SET used_bytes = q.used_bytes + t.bytes
    FROM unnest($1::text[], $2::bigint[]) AS t(user_id, bytes) WHERE q.user_id = t.user_id AND q.used_bytes IS NOT NULL`,
  sqlite: 'UPDATE ichido.quotas SET used_bytes = used_bytes + $2 WHERE user_id = $1 AND used_bytes IS NOT NULL',
})

/** The limits of everybody without their own are about to change: whoever has one then is counted anew. */
export const forgetBytes = statement('forget_bytes', {
  postgres: `UPDATE ichido.quotas SET used_bytes = NULL WHERE user_id IN (
      SELECT user_id FROM ichido.quotas WHERE NOT custom AND used_bytes IS NOT NULL ORDER BY user_id FOR UPDATE)`,
  sqlite: 'UPDATE ichido.quotas SET used_bytes = NULL WHERE NOT custom AND used_bytes IS NOT NULL',
})

const COUNTED = 'CASE WHEN q.custom THEN q.max_bytes ELSE d.max_bytes END IS NOT NULL'
const OWNERS = "SELECT q.user_id FROM ichido.quotas q, ichido.quotas d WHERE d.user_id = '*'"

/**
 * Takes users, sorted. Locks those that are counted, and keeps the others as they are; answers with those that somebody else
 * has a hand on. Nothing here waits.
 */
export const lockOwners = statement('lock_owners', {
  postgres: `WITH c AS MATERIALIZED (
      ${OWNERS} AND q.user_id = ANY($1::text[]) AND ${COUNTED} ORDER BY q.user_id FOR UPDATE OF q SKIP LOCKED),
    s AS MATERIALIZED (
      ${OWNERS} AND q.user_id = ANY($1::text[]) AND NOT (${COUNTED}) ORDER BY q.user_id FOR SHARE OF q, d SKIP LOCKED)
    SELECT user_id FROM ichido.quotas WHERE user_id = ANY($1::text[])
      AND user_id NOT IN (SELECT user_id FROM c UNION ALL SELECT user_id FROM s)`,
  sqlite: [],
})

/** Takes a JSON array of jobs: whose they are. */
export const readOwners = statement('read_owners', {
  postgres: `SELECT id, user_id FROM ichido.jobs
    WHERE id IN (SELECT t.id::uuid FROM json_array_elements_text($1::json) AS t(id))`,
  sqlite: 'SELECT id, user_id FROM ichido.jobs WHERE id IN (SELECT t.value FROM json_each($1) t)',
})
