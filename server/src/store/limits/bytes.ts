import type { ByteQuota } from '../../core/limits/quota.ts'
import { each, query, type RowOf, statement, type Work } from '../statement.ts'
import { lockUsersOf } from './users.ts'

/**
 * The bytes that users have stored: payloads, complete artifacts, and logs. The row of a user with a limit holds the
 * sum, once it has been counted. A transaction that adds or removes bytes locks that row.
 */

/** For a row `l` of `run_logs`. An archived log has one row with the length of its file. */
export const LOG_BYTES = 'CASE WHEN l.log_ref IS NULL THEN octet_length(l.chunk) ELSE coalesce(l.end_bytes, 0) END'

/** For a deleted artifact: its user, and the bytes that become free. */
export const ARTIFACT_FREED = `user_id, CASE WHEN state = 'ready' THEN size_bytes END AS bytes`

const sumOf = (bytes: string, rows: string) => `coalesce((SELECT CAST(sum(${bytes}) AS bigint) FROM ${rows}), 0)`
const stored = (user: string) => `${sumOf('octet_length(j.payload)', `ichido.jobs j WHERE j.user_id = ${user}`)}
      + ${sumOf('a.size_bytes', `ichido.artifacts a WHERE a.user_id = ${user} AND a.state = 'ready'`)}
      + ${sumOf(LOG_BYTES, `ichido.jobs j JOIN ichido.run_logs l ON l.job_id = j.id WHERE j.user_id = ${user}`)}`

/** The users' rows are locked. This is a separate statement: its snapshot must be younger than the lock. */
const updateCounted = statement('count_bytes', {
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
const updateBytes = statement('add_bytes', {
  params: { user_id: 'text', bytes: 'integer' },
  row: {},
  postgres: `UPDATE ichido.quotas q SET used_bytes = q.used_bytes + t.bytes
    FROM unnest($user_id::text[], $bytes::bigint[]) AS t(user_id, bytes) WHERE q.user_id = t.user_id AND q.used_bytes IS NOT NULL`,
  sqlite:
    'UPDATE ichido.quotas SET used_bytes = used_bytes + $bytes WHERE user_id = $user_id AND used_bytes IS NOT NULL',
})

/** The default limits will change: each user with a limit is then counted again. */
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
 * Locks users that are counted, and shares the rows of the others. The users are sorted. It returns users that another
 * transaction has locked, and never waits.
 */
const lockCounted = statement('lock_owners', {
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
const readOwners = statement('read_owners', {
  params: { job_ids: 'text' },
  row: { id: 'text', user_id: 'text' },
  postgres: `SELECT id, user_id FROM ichido.jobs
    WHERE id IN (SELECT t.id::uuid FROM json_array_elements_text($job_ids::json) AS t(id))`,
  sqlite: 'SELECT id, user_id FROM ichido.jobs WHERE id IN (SELECT t.value FROM json_each($job_ids) t)',
})

/** Locks a user before bytes are stored. The row of a user without a limit is only shared, and nothing is counted. */
export function* lockForBytes(userId: string): Work<ByteQuota> {
  const [user] = yield* lockUsersOf([userId])
  const quota: ByteQuota = { maxBytes: user?.max_bytes ?? null, usedBytes: user?.used_bytes ?? null }
  for (const { used_bytes } of yield* countBytes([{ ...quota, userId }])) quota.usedBytes = used_bytes
  return quota
}

/** Counts the bytes of users with a limit that have not been counted since the limit was set. Their rows are locked. */
export function* countBytes(users: readonly (ByteQuota & { userId: string })[]): Work<RowOf<typeof updateCounted>[]> {
  const uncounted = users.filter(({ maxBytes, usedBytes }) => maxBytes !== null && usedBytes === null)
  return yield* each(
    updateCounted,
    uncounted.map(({ userId }) => ({ user_id: userId })),
  )
}

/** The users' rows are locked. Users without a limit are not counted. */
export function* addBytes(changes: Iterable<readonly [userId: string, bytes: number]>): Work<void> {
  const sums = new Map<string, number>()
  for (const [userId, bytes] of changes) if (bytes !== 0) sums.set(userId, (sums.get(userId) ?? 0) + bytes)
  yield* each(
    updateBytes,
    [...sums].sort().map(([user_id, bytes]) => ({ user_id, bytes })),
  )
}

/** Takes rows that this transaction has just deleted: only the deleting transaction frees the bytes. */
export function* freeBytes(removed: readonly { user_id: string; bytes: number | null }[]): Work<void> {
  yield* addBytes(removed.map(({ user_id, bytes }) => [user_id, -(bytes ?? 0)]))
}

/**
 * Locks the users of rows that will be removed, without waiting, because removal is not urgent. Returns the ids of rows
 * whose users are locked. A user that gets a limit meanwhile is counted before or after, not in between.
 */
export function* lockOwners(rows: readonly { id: string; user_id: string }[]): Work<string[]> {
  const users = [...new Set(rows.map(({ user_id }) => user_id))].sort()
  const busy = yield* each(
    lockCounted,
    users.map((user_id) => ({ user_id })),
  )
  const left = new Set(busy.map(({ user_id }) => user_id))
  return rows.flatMap(({ id, user_id }) => (left.has(user_id) ? [] : [id]))
}

export function* lockOwnersOf(jobIds: readonly string[]): Work<string[]> {
  return yield* lockOwners(yield* query(readOwners, { job_ids: JSON.stringify(jobIds) }))
}
