import { type ByteQuota, periodStartMs, type Quota } from '../../core/limits/quota.ts'
import { each, type RowOf, type Work } from '../statement.ts'
import { expireReservations } from '../submission/reservations.sql.ts'
import { addUsers, countInUse, lockUsers, readSpent, shareUsers } from './quotas.sql.ts'

/** The limits and use of a user, read under its lock. The command raises the use for each admitted job. */
export interface LockedUser extends Omit<Quota, 'maxBytes'>, ByteQuota {
  userId: string
  inUse: number
  spentMicros: number
}

export interface LockedUsers {
  users: Map<string, LockedUser>
  /** The instant that the command decides by. */
  nowMs: number
  /** Admitted jobs begin at this instant, and not before the runs that made room for them had ended. */
  countedAtMs: number
}

/**
 * Locks users with limits in the order of their ids, then counts in separate statements: a count in the locking
 * statement would use a snapshot from before the wait, and exceed the limit. Reservations that are not counted become
 * expired.
 */
export function* lockAndCount(userIds: Iterable<string>): Work<LockedUsers> {
  const locked = yield* lockUsersOf(userIds)
  // The latest of these times is after all locks.
  const nowMs = Math.max(...locked.map((row) => row.now))
  const users = new Map(locked.map((row) => [row.user_id, toUser(row)]))

  const limited = [...users.values()].filter((user) => user.maxConcurrent !== null)
  const counts = yield* each(
    countInUse,
    limited.map((user) => ({ user_id: user.userId, at: nowMs })),
  )
  for (const row of counts) {
    const user = users.get(row.user_id)
    if (user) user.inUse = row.active + row.reserved
  }
  yield* each(
    expireReservations,
    counts.filter(({ lapsed }) => lapsed).map(({ user_id }) => ({ user_id, at: nowMs })),
  )
  return { users, nowMs, countedAtMs: Math.max(nowMs, ...counts.map((row) => row.now)) }
}

/** The effective limits of a user, read under its lock. */
export type UserLimits = RowOf<typeof lockUsers>

/** Locks users in the order of their ids. The rows of users without limits are shared. */
export function* lockUsersOf(userIds: Iterable<string>): Work<UserLimits[]> {
  return yield* lock([...new Set(userIds)].sort())
}

function* lock(ids: readonly string[]): Work<UserLimits[]> {
  const rowsOf = (users: readonly string[]) => users.map((user_id) => ({ user_id }))
  const unlimited = yield* each(shareUsers, rowsOf(ids))
  const shared = new Set(unlimited.map(({ user_id }) => user_id))
  const rest = ids.filter((id) => !shared.has(id))
  if (rest.length === 0) return unlimited
  const limited = yield* each(lockUsers, rowsOf(rest))
  if (limited.length === rest.length) return [...unlimited, ...limited]
  yield* each(addUsers, rowsOf(rest))
  return [...unlimited, ...(yield* lock(rest))]
}

/** Reads the costs of users with a cost limit, under their lock. `chargedAtMs` is the instant of the charge. */
export function* readCosts(users: Iterable<LockedUser>, chargedAtMs: number): Work<void> {
  const limited = [...users].filter((user) => user.costLimitMicros !== null)
  const counters = limited.map(({ userId, period }) => ({
    user_id: userId,
    period,
    period_start: periodStartMs(period, chargedAtMs),
  }))
  const found = new Map((yield* each(readSpent, counters)).map((row) => [row.user_id, row.spent_micros]))
  for (const user of limited) user.spentMicros = found.get(user.userId) ?? 0
}

function toUser(row: UserLimits): LockedUser {
  return {
    userId: row.user_id,
    maxConcurrent: row.max_concurrent,
    costLimitMicros: row.cost_limit_micros,
    period: row.period,
    inUse: 0,
    spentMicros: 0,
    maxBytes: row.max_bytes,
    usedBytes: row.used_bytes,
  }
}
