import { type CostPeriod, periodStartMs, type Quota } from '../../core/quota.ts'
import { type Command, command } from '../port.ts'
import { countInUse, deleteQuota, putQuota, readQuota, readSpent } from '../sql/quotas.ts'
import { RESERVATION, readReservation } from '../sql/reservations.ts'
import {
  each,
  flag,
  integer,
  integerOrNull,
  now,
  one,
  query,
  type SqlValue,
  statement,
  text,
  type Work,
} from '../statement.ts'
import type { Listed } from './list-jobs.ts'
import { type Reservation, toReservation } from './reservations.ts'

export interface QuotaUse extends Quota {
  userId: string
  custom: boolean
  activeJobs: number
  activeReservations: number
  spentMicros: number
}

export function findQuota(userId: string): Command<QuotaUse> {
  return command('find_quota', function* work(): Work<QuotaUse> {
    const row = yield* one(readQuota, userId)
    const custom = flag(row, 'custom')
    const prefix = custom ? '' : 'default_'
    const period = text(row, `${prefix}period`) as CostPeriod
    const nowMs = yield* now()
    const [use] = yield* each(countInUse, [[userId, nowMs]])
    const [spent] = yield* each(readSpent, [[userId, period, periodStartMs(period, nowMs)]])
    return {
      userId,
      custom,
      period,
      maxConcurrent: integerOrNull(row, `${prefix}max_concurrent`),
      costLimitMicros: integerOrNull(row, `${prefix}cost_limit_micros`),
      activeJobs: integer(use, 'active'),
      activeReservations: integer(use, 'reserved'),
      spentMicros: integerOrNull(spent, 'spent_micros') ?? 0,
    }
  })
}

export function setQuota(userId: string, quota: Quota): Command<void> {
  return command('put_quota', function* work(): Work<void> {
    yield* query(putQuota, userId, quota.maxConcurrent, quota.costLimitMicros, quota.period)
  })
}

/** Back to the limits of `*`. */
export function clearQuota(userId: string): Command<boolean> {
  return command('delete_quota', function* work(): Work<boolean> {
    return (yield* query(deleteQuota, userId)).length > 0
  })
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
    const rows = yield* query(statement('', sql), ...params)
    const page = rows.slice(0, limit).map(toReservation)
    return { rows: page, next: rows.length > limit ? (page.at(-1)?.reservationId ?? null) : null }
  })
}

export function findReservation(reservationId: string): Command<Reservation | null> {
  return command('find_reservation', function* work(): Work<Reservation | null> {
    const row = yield* one(readReservation, reservationId)
    return row === undefined ? null : toReservation(row)
  })
}
