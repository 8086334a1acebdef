import type { ByteQuota } from '../../core/limits/quota.ts'
import { each, integer, integerOrNull, query, type Row, text, type Work } from '../statement.ts'
import * as sql from './bytes.sql.ts'
import { lockUsersOf } from './users.ts'

/** Locks a user before bytes of it are stored. Without a limit its row is only kept as it is, and nothing is counted. */
export function* lockForBytes(userId: string): Work<ByteQuota> {
  const [row] = yield* lockUsersOf([userId])
  const quota = toByteQuota(row)
  for (const counted of yield* countBytes([{ ...quota, userId }])) quota.usedBytes = integer(counted, 'used_bytes')
  return quota
}

export function toByteQuota(row: Row | undefined): ByteQuota {
  return { maxBytes: integerOrNull(row, 'max_bytes'), usedBytes: integerOrNull(row, 'used_bytes') }
}

/** Counts what those with a limit have stored, whose rows are locked and who have not been counted since it was set. */
export function* countBytes(users: readonly (ByteQuota & { userId: string })[]): Work<Row[]> {
  const uncounted = users.filter(({ maxBytes, usedBytes }) => maxBytes !== null && usedBytes === null)
  return yield* each(
    sql.countBytes,
    uncounted.map(({ userId }) => [userId]),
  )
}

/** Of users whose rows are locked. Those without a limit are not counted. */
export function* addBytes(changes: Iterable<readonly [userId: string, bytes: number]>): Work<void> {
  const sums = new Map<string, number>()
  for (const [userId, bytes] of changes) if (bytes !== 0) sums.set(userId, (sums.get(userId) ?? 0) + bytes)
  yield* each(sql.addBytes, [...sums].sort())
}

/** Takes rows that were just deleted, each with its user and bytes: nothing is freed but by who removed it. */
export function* freeBytes(removed: readonly Row[]): Work<void> {
  yield* addBytes(removed.map((row) => [text(row, 'user_id'), -(integerOrNull(row, 'bytes') ?? 0)]))
}

/**
 * Takes rows that are to be removed, each with its id and its user, and locks the users, as far as that can be without waiting:
 * who removes what is old has time. Answers with the ids of those whose users are locked. A user that is set a limit meanwhile is counted
 * before or after, not in between.
 */
export function* lockOwners(rows: readonly Row[]): Work<string[]> {
  const users = [...new Set(rows.map((row) => text(row, 'user_id')))].sort()
  const busy = yield* each(
    sql.lockOwners,
    users.map((id) => [id]),
  )
  const left = new Set(busy.map((row) => text(row, 'user_id')))
  return rows.flatMap((row) => (left.has(text(row, 'user_id')) ? [] : [text(row, 'id')]))
}

export function* lockOwnersOf(jobIds: readonly string[]): Work<string[]> {
  return yield* lockOwners(yield* query(sql.readOwners, JSON.stringify(jobIds)))
}
