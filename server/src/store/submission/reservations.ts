import { admit } from '../../core/limits/quota.ts'
import { type By, record } from '../access/audit.ts'
import { readJobs } from '../jobs/read-jobs.ts'
import { lockAndCount } from '../limits/users.ts'
import { type Command, commandIn } from '../port.ts'
import { each, exactlyOne, one, type Values, type Work } from '../statement.ts'
import {
  consumeReservations,
  insertReservation,
  type RESERVATION_ROW,
  readReservation,
  releaseReservation,
} from './reservations.sql.ts'

type ReservationRow = Values<typeof RESERVATION_ROW>

type ReservationState = 'active' | 'consumed' | 'released' | 'expired'

export interface Reservation {
  reservationId: string
  userId: string
  state: ReservationState
  createdAtMs: number
  expiresAtMs: number
  jobId: string | null
}

export type ReserveOutcome =
  | { kind: 'reserved' | 'repeated'; reservation: Reservation; quotaWarnings: string[] }
  | { kind: 'refused'; code: Refusal | 'QUOTA_EXCEEDED' | 'COST_LIMIT_EXCEEDED'; message: string }

type Refusal = 'RESERVATION_NOT_ACTIVE' | 'NOT_FOUND'

/**
 * Takes a slot before its job exists. It expires without a timer: every count checks its time, and the first count that leaves it
 * out records that. An id that the caller has chosen may exist already: then the request is a repeat.
 */
export function reserveSlot(
  reservationId: string,
  userId: string,
  ttlMs: number,
  chosen = false,
): Command<ReserveOutcome> {
  return commandIn('users', 'reserve', function* work(again): Work<ReserveOutcome> {
    const user = (yield* lockAndCount([userId])).users.get(userId)
    if (user === undefined) throw new Error('A locked user has a row')
    const own = again || chosen ? yield* one(readReservation, { reservation_id: reservationId }) : undefined
    if (own !== undefined) return again && !chosen ? reserved(own) : repeated(own, userId)
    const admission = admit(user, user, 1, 0)
    if (!admission.ok) return { kind: 'refused', code: admission.code, message: admission.message }
    const made = yield* one(insertReservation, { reservation_id: reservationId, user_id: userId, ttl_ms: ttlMs })
    const row = yield* exactlyOne(readReservation, { reservation_id: reservationId })
    return made === undefined ? repeated(row, userId) : reserved(row, admission.quotaWarnings)
  })
}

function reserved(row: ReservationRow, quotaWarnings: string[] = []): ReserveOutcome {
  return { kind: 'reserved', reservation: toReservation(row), quotaWarnings }
}

function repeated(row: ReservationRow, userId: string): ReserveOutcome {
  const reservation = toReservation(row)
  if (reservation.userId !== userId) return notFound('reservation', reservation.reservationId)
  if (reservation.state !== 'active') return notActive(reservation)
  return { kind: 'repeated', reservation, quotaWarnings: [] }
}

type ReservationOutcome = { kind: 'done' | 'repeated'; reservation: Reservation } | Refused

interface Refused {
  kind: 'refused'
  code: Refusal
  message: string
}

/** Records the job of the slot. The job must be the caller's own. */
export function consumeSlot(reservationId: string, userId: string, jobId: string): Command<ReservationOutcome> {
  return commandIn('users', 'consume', function* work(): Work<ReservationOutcome> {
    const { nowMs } = yield* lockAndCount([userId])
    const [job] = yield* each(readJobs, [{ job_id: jobId }])
    if (job?.user_id !== userId) return notFound('job', jobId)
    const slot = { reservation_id: reservationId, user_id: userId, job_id: jobId, at: nowMs }
    const [changed] = yield* each(consumeReservations, [slot])
    return yield* settled(reservationId, userId, changed !== undefined, (own) => own.jobId === jobId)
  })
}

/** `by`: an operator who gives back the slot of another user. */
export function releaseSlot(reservationId: string, userId: string, by: By | null = null): Command<ReservationOutcome> {
  return commandIn('users', 'release_reservation', function* work(): Work<ReservationOutcome> {
    const { nowMs } = yield* lockAndCount([userId])
    const slot = { reservation_id: reservationId, user_id: userId, at: nowMs }
    const changed = yield* one(releaseReservation, slot)
    if (by !== null && changed !== undefined) {
      yield* record(
        by,
        'reservation.release',
        reservationId,
        { user_id: userId, state: 'active' },
        { state: 'released' },
      )
    }
    return yield* settled(reservationId, userId, changed !== undefined, ({ state }) => state === 'released')
  })
}

function* settled(
  reservationId: string,
  userId: string,
  changed: boolean,
  isRepeat: (own: Reservation) => boolean,
): Work<ReservationOutcome> {
  const row = yield* one(readReservation, { reservation_id: reservationId })
  if (row === undefined || row.user_id !== userId) return notFound('reservation', reservationId)
  const reservation = toReservation(row)
  if (changed) return { kind: 'done', reservation }
  if (isRepeat(reservation)) return { kind: 'repeated', reservation }
  return notActive(reservation)
}

function notActive({ reservationId, state }: Reservation): Refused {
  return { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE', message: `The reservation ${reservationId} is ${state}` }
}

function notFound(what: string, id: string): Refused {
  return { kind: 'refused', code: 'NOT_FOUND', message: `There is no ${what} ${id}` }
}

export function toReservation(row: ReservationRow): Reservation {
  return {
    reservationId: row.reservation_id,
    userId: row.user_id,
    state: stateOf(row),
    createdAtMs: row.created_at,
    expiresAtMs: row.expires_at,
    jobId: row.job_id,
  }
}

function stateOf({ consumed_at, released_at, expires_at, now }: ReservationRow): ReservationState {
  if (consumed_at !== null) return 'consumed'
  // `expireReservations` records an expiry as a release at that time. A release by the user is earlier.
  if (released_at !== null) return released_at < expires_at ? 'released' : 'expired'
  return expires_at <= now ? 'expired' : 'active'
}
