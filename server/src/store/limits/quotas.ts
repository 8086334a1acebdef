import { type ByteQuota, MICROS, periodStartMs, type Quota } from '../../core/limits/quota.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, commandIn, type Listed, pageOf } from '../port.ts'
import { each, now, one, query, type RowOf, type SqlValue, select, type Work } from '../statement.ts'
import { RESERVATION, RESERVATION_ROW, readReservation } from '../submission/reservations.sql.ts'
import { type Reservation, toReservation } from '../submission/reservations.ts'
import { forgetBytes, readBytes } from './bytes.ts'
import {
  addUsers,
  countInUse,
  deleteQuota,
  lockQuota,
  putQuota,
  readQuota,
  readSpent,
  USER_ROW,
  usersAfter,
} from './quotas.sql.ts'

export interface QuotaUse extends Omit<Quota, 'maxBytes'>, ByteQuota {
  userId: string
  custom: boolean
  activeJobs: number
  activeReservations: number
  spentMicros: number
}

export interface UserUse extends QuotaUse {
  /** When the user's first token was created; null: the user has no token. */
  createdAtMs: number | null
}

export function findQuota(userId: string): Command<QuotaUse> {
  return command('find_quota', function* work(): Work<QuotaUse> {
    const row = yield* one(readQuota, { user_id: userId })
    if (row === undefined) throw new Error('The default limits have no row')
    const user = { userId, ...toLimits(row) }
    const withUse = yield* countUse([user])
    return withUse(user)
  })
}

/** In the order of their ids, without `*`. */
export function listUsers(limit: number, after: string | null): Command<Listed<UserUse>> {
  return command('list_users', function* work(): Work<Listed<UserUse>> {
    const rows = yield* select(USER_ROW, usersAfter(limit + 1), [after ?? ''])
    const page = pageOf(rows, limit, (row) => row.user_id)
    const users = page.rows.map((row) => ({
      userId: row.user_id,
      createdAtMs: row.created_at,
      ...toLimits(row),
    }))
    const withUse = yield* countUse(users)
    return { rows: users.map(withUse), next: page.next }
  })
}

type Limits = Omit<Quota, 'maxBytes'> & ByteQuota & { custom: boolean }
type Limited = Limits & { userId: string }

function toLimits(row: RowOf<typeof readQuota>): Limits {
  return {
    custom: row.custom,
    period: row.period,
    maxConcurrent: row.max_concurrent,
    costLimitMicros: row.cost_limit_micros,
    maxBytes: row.max_bytes,
    usedBytes: row.used_bytes,
  }
}

/** Counts the use of the limits, for all users at once. */
function* countUse(users: readonly Limited[]): Work<<T extends Limited>(user: T) => T & QuotaUse> {
  const nowMs = yield* now()
  const instants = users.map(({ userId }) => ({ user_id: userId, at: nowMs }))
  const periods = users.map(({ userId, period }) => ({
    user_id: userId,
    period,
    period_start: periodStartMs(period, nowMs),
  }))
  const inUse = new Map((yield* each(countInUse, instants)).map((row) => [row.user_id, row]))
  const spent = new Map((yield* each(readSpent, periods)).map((row) => [row.user_id, row.spent_micros]))
  const stored = yield* readStored(users)
  return (user) => ({
    ...user,
    usedBytes: stored.get(user.userId) ?? null,
    activeJobs: inUse.get(user.userId)?.active ?? 0,
    activeReservations: inUse.get(user.userId)?.reserved ?? 0,
    spentMicros: spent.get(user.userId) ?? 0,
  })
}

/** For users with a limit. A user that has stored nothing since its limit was set has not been counted yet. */
function* readStored(users: readonly Limited[]): Work<Map<string, number>> {
  const stored = new Map<string, number>()
  for (const { userId, maxBytes, usedBytes } of users) {
    if (maxBytes === null || userId === DEFAULT_USER) continue
    stored.set(userId, usedBytes ?? (yield* one(readBytes, { user_id: userId }))?.used_bytes ?? 0)
  }
  return stored
}

const DEFAULT_USER = '*'

/** @param by who asked for it; null: the change is not recorded. A change to the same limits is not recorded either. */
export function setQuota(userId: string, quota: Quota, by: By | null = null): Command<void> {
  return commandIn('users', 'put_quota', function* work(again): Work<void> {
    yield* each(addUsers, [{ user_id: userId }])
    // Users are locked before the default, as in every transaction that locks both.
    if (userId === DEFAULT_USER) yield* query(forgetBytes, {})
    const [before, after] = [yield* lockOwn(userId), describe(quota)]
    if (by !== null && (yield* isRecorded(again, by))) return
    yield* query(putQuota, {
      user_id: userId,
      max_concurrent: quota.maxConcurrent,
      cost_limit_micros: quota.costLimitMicros,
      period: quota.period,
      max_bytes: quota.maxBytes ?? null,
    })
    const changed = JSON.stringify(before) !== JSON.stringify(after)
    if (by !== null && changed) yield* record(by, 'quota.put', userId, before, after)
  })
}

/** Returns the user to the limits of `*`. */
export function clearQuota(userId: string, by: By | null = null): Command<boolean> {
  return commandIn('users', 'delete_quota', function* work(again): Work<boolean> {
    const before = yield* lockOwn(userId)
    if (by !== null && (yield* isRecorded(again, by))) return true
    if (before === null) return false
    yield* query(deleteQuota, { user_id: userId })
    if (by !== null) yield* record(by, 'quota.delete', userId, before, null)
    return true
  })
}

/** Returns null if the user has no limits of its own. */
function* lockOwn(userId: string): Work<ReturnType<typeof describe> | null> {
  const row = yield* one(lockQuota, { user_id: userId })
  if (!row?.custom) return null
  const { max_concurrent, cost_limit_micros, period, max_bytes } = row
  return describe({
    maxConcurrent: max_concurrent,
    costLimitMicros: cost_limit_micros,
    period,
    maxBytes: max_bytes,
  })
}

function describe({ maxConcurrent, costLimitMicros, period, maxBytes = null }: Quota) {
  const costLimit = costLimitMicros === null ? null : costLimitMicros / MICROS
  return { max_concurrent: maxConcurrent, cost_limit: costLimit, period, max_bytes: maxBytes }
}

export function listReservations(
  userId: string | null,
  activeOnly: boolean,
  limit: number,
  after: string | null,
): Command<Listed<Reservation>> {
  return command('list_reservations', function* work(): Work<Listed<Reservation>> {
    const params: SqlValue[] = []
    const bind = (value: SqlValue) => `$${params.push(value)}`
    const where = ['true']
    if (userId !== null) where.push(`user_id = ${bind(userId)}`)
    if (activeOnly) where.push('consumed_at IS NULL AND released_at IS NULL AND expires_at > now_ms()')
    if (after !== null) where.push(`reservation_id < ${bind(after)}`)
    const sql = `SELECT ${RESERVATION}, now_ms() AS now FROM ichido.job_reservations WHERE ${where.join(' AND ')}
      ORDER BY reservation_id DESC LIMIT ${limit + 1}`
    const found = (yield* select(RESERVATION_ROW, sql, params)).map(toReservation)
    return pageOf(found, limit, ({ reservationId }) => reservationId)
  })
}

export function findReservation(reservationId: string): Command<Reservation | null> {
  return command('find_reservation', function* work(): Work<Reservation | null> {
    const row = yield* one(readReservation, { reservation_id: reservationId })
    return row === undefined ? null : toReservation(row)
  })
}
