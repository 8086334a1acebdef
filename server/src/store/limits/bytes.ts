import type { ByteQuota } from '../../core/limits/quota.ts'
import { each, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './bytes.sql.ts'
import { lockUsersOf } from './users.ts'

/** Locks a user before bytes of it are stored. The row of a user without a limit is only shared, and nothing is counted. */
export function* lockForBytes(userId: string): Work<ByteQuota> {
  const [user] = yield* lockUsersOf([userId])
  const quota: ByteQuota = { maxBytes: user?.max_bytes ?? null, usedBytes: user?.used_bytes ?? null }
  for (const { used_bytes } of yield* countBytes([{ ...quota, userId }])) quota.usedBytes = used_bytes
  return quota
}

/** Counts the bytes of users with a limit that have not been counted since the limit was set. Their rows are locked. */
export function* countBytes(users: readonly (ByteQuota & { userId: string })[]): Work<RowOf<typeof sql.countBytes>[]> {
  const uncounted = users.filter(({ maxBytes, usedBytes }) => maxBytes !== null && usedBytes === null)
  return yield* each(
    sql.countBytes,
    uncounted.map(({ userId }) => ({ user_id: userId })),
  )
}

/** Of users whose rows are locked. Those without a limit are not counted. */
export function* addBytes(changes: Iterable<readonly [userId: string, bytes: number]>): Work<void> {
  const sums = new Map<string, number>()
  for (const [userId, bytes] of changes) if (bytes !== 0) sums.set(userId, (sums.get(userId) ?? 0) + bytes)
  yield* each(
    sql.addBytes,
    [...sums].sort().map(([user_id, bytes]) => ({ user_id, bytes })),
  )
}

/** Takes rows that this transaction has just deleted: only the transaction that removes a row frees its bytes. */
export function* freeBytes(removed: readonly { user_id: string; bytes: number | null }[]): Work<void> {
  yield* addBytes(removed.map(({ user_id, bytes }) => [user_id, -(bytes ?? 0)]))
}

/**
 * Takes rows that are to be removed, and locks their users without waiting: removing old rows is not urgent. Answers with the
 * ids of the rows whose users are locked. A user that gets a limit meanwhile is counted before or after, not in between.
 */
export function* lockOwners(rows: readonly { id: string; user_id: string }[]): Work<string[]> {
  const users = [...new Set(rows.map(({ user_id }) => user_id))].sort()
  const busy = yield* each(
    sql.lockOwners,
    users.map((user_id) => ({ user_id })),
  )
  const left = new Set(busy.map(({ user_id }) => user_id))
  return rows.flatMap(({ id, user_id }) => (left.has(user_id) ? [] : [id]))
}

export function* lockOwnersOf(jobIds: readonly string[]): Work<string[]> {
  return yield* lockOwners(yield* query(sql.readOwners, { job_ids: JSON.stringify(jobIds) }))
}
