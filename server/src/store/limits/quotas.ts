import { type ByteQuota, type CostPeriod, MICROS, periodStartMs, type Quota } from '../../core/limits/quota.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import {
  each,
  flag,
  integer,
  integerOrNull,
  now,
  one,
  query,
  type Row,
  type SqlValue,
  select,
  text,
  type Work,
} from '../statement.ts'
import { RESERVATION, RESERVATION_ROW, readReservation } from '../submission/reservations.sql.ts'
import { type Reservation, toReservation } from '../submission/reservations.ts'
import { forgetBytes, readBytes } from './bytes.sql.ts'
import { toByteQuota } from './bytes.ts'
import {
  addUsers,
  countInUse,
  deleteQuota,
  lockQuota,
  putQuota,
  readQuota,
  readSpent,
  readUsers,
} from './quotas.sql.ts'

export interface QuotaUse extends Omit<Quota, 'maxBytes'>, ByteQuota {
  userId: string
  custom: boolean
  activeJobs: number
  activeReservations: number
  spentMicros: number
}

export interface UserUse extends QuotaUse {
  /** When its first token was made; null: it has come without one. */
  createdAtMs: number | null
}

export function findQuota(userId: string): Command<QuotaUse> {
  return command('find_quota', function* work(): Work<QuotaUse> {
    const user = { userId, ...toLimits(yield* one(readQuota, userId)) }
    const withUse = yield* countUse([user])
    return withUse(user)
  })
}

/** In the order of their ids; `*` is none of them. */
export function listUsers(limit: number, after: string | null): Command<Listed<UserUse>> {
  return command('list_users', function* work(): Work<Listed<UserUse>> {
    const rows = yield* query(readUsers(limit + 1), after ?? '')
    const users = rows.slice(0, limit).map((row) => ({
      userId: text(row, 'user_id'),
      createdAtMs: integerOrNull(row, 'created_at'),
      ...toLimits(row),
    }))
    const withUse = yield* countUse(users)
    return { rows: users.map(withUse), next: rows.length > limit ? (users.at(-1)?.userId ?? null) : null }
  })
}

type Limits = Omit<Quota, 'maxBytes'> & ByteQuota & { custom: boolean }
type Limited = Limits & { userId: string }

function toLimits(row: Row | undefined): Limits {
  return {
    custom: flag(row, 'custom'),
    period: text(row, 'period') as CostPeriod,
    maxConcurrent: integerOrNull(row, 'max_concurrent'),
    costLimitMicros: integerOrNull(row, 'cost_limit_micros'),
    ...toByteQuota(row),
  }
}

/** What is used of the limits, counted for all of the users at once. */
function* countUse(users: readonly Limited[]): Work<<T extends Limited>(user: T) => T & QuotaUse> {
  const nowMs = yield* now()
  const byUser = (rows: readonly Row[]) => new Map(rows.map((row) => [text(row, 'user_id'), row]))
  const instants = users.map(({ userId }) => [userId, nowMs])
  const periods = users.map(({ userId, period }) => [userId, period, periodStartMs(period, nowMs)])
  const inUse = byUser(yield* each(countInUse, instants))
  const spent = byUser(yield* each(readSpent, periods))
  const stored = yield* readStored(users)
  return (user) => ({
    ...user,
    usedBytes: stored.get(user.userId) ?? null,
    activeJobs: integer(inUse.get(user.userId), 'active'),
    activeReservations: integer(inUse.get(user.userId), 'reserved'),
    spentMicros: integerOrNull(spent.get(user.userId), 'spent_micros') ?? 0,
  })
}

/** Of those with a limit. A user that has stored nothing since its limit was set has not been counted yet. */
function* readStored(users: readonly Limited[]): Work<Map<string, number>> {
  const stored = new Map<string, number>()
  for (const { userId, maxBytes, usedBytes } of users) {
    if (maxBytes === null || userId === DEFAULT_USER) continue
    stored.set(userId, usedBytes ?? integer(yield* one(readBytes, userId), 'used_bytes'))
  }
  return stored
}

const DEFAULT_USER = '*'

/** @param by who asked for it; null: nobody is to be told of. What changes nothing is not told of either. */
export function setQuota(userId: string, quota: Quota, by: By | null = null): Command<void> {
  return command('put_quota', function* work(again): Work<void> {
    yield* each(addUsers, [[userId]])
    // Users before the default: so does everybody else who locks both.
    if (userId === DEFAULT_USER) yield* query(forgetBytes)
    const [before, after] = [yield* lockOwn(userId), describe(quota)]
    if (by !== null && (yield* isRecorded(again, by))) return
    yield* query(putQuota, userId, quota.maxConcurrent, quota.costLimitMicros, quota.period, quota.maxBytes ?? null)
    const changed = JSON.stringify(before) !== JSON.stringify(after)
    if (by !== null && changed) yield* record(by, 'quota.put', userId, before, after)
  })
}

/** Back to the limits of `*`. */
export function clearQuota(userId: string, by: By | null = null): Command<boolean> {
  return command('delete_quota', function* work(again): Work<boolean> {
    const before = yield* lockOwn(userId)
    if (by !== null && (yield* isRecorded(again, by))) return true
    if (before === null) return false
    yield* query(deleteQuota, userId)
    if (by !== null) yield* record(by, 'quota.delete', userId, before, null)
    return true
  })
}

/** Null when the user has no limits of its own. */
function* lockOwn(userId: string): Work<ReturnType<typeof describe> | null> {
  const row = yield* one(lockQuota, userId)
  if (!flag(row, 'custom')) return null
  return describe(toLimits(row))
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
    const rows = yield* select(RESERVATION_ROW, sql, params)
    const page = rows.slice(0, limit).map(toReservation)
    return { rows: page, next: rows.length > limit ? (page.at(-1)?.reservationId ?? null) : null }
  })
}

export function findReservation(reservationId: string): Command<Reservation | null> {
  return command('find_reservation', function* work(): Work<Reservation | null> {
    const row = yield* one(readReservation, { reservation_id: reservationId })
    return row === undefined ? null : toReservation(row)
  })
}
