import { admit } from '../../core/limits/quota.ts'
import { readJobs } from '../jobs/jobs.sql.ts'
import { lockAndCount } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { each, integer, integerOrNull, one, type Row, text, textOrNull, type Work } from '../statement.ts'
import { consumeReservations, insertReservation, readReservation, releaseReservation } from './reservations.sql.ts'

export type ReservationState = 'active' | 'consumed' | 'released' | 'expired'

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
 * Takes a slot before its job exists. Nothing has to run for it to expire: every count looks at its time, and the first that
 * leaves it out writes that down. An id that the caller has chosen may be there already: the same reservation, asked for again.
 */
export function reserveSlot(
  reservationId: string,
  userId: string,
  ttlMs: number,
  chosen = false,
): Command<ReserveOutcome> {
  return command('reserve', function* work(again): Work<ReserveOutcome> {
    const user = (yield* lockAndCount([userId])).users.get(userId)
    if (user === undefined) throw new Error('A locked user has a row')
    const own = again || chosen ? yield* one(readReservation, reservationId) : undefined
    if (own !== undefined) return again && !chosen ? reserved(own) : repeated(own, userId)
    const admission = admit(user, user, 1, 0)
    if (!admission.ok) return { kind: 'refused', code: admission.code, message: admission.message }
    const made = yield* one(insertReservation, reservationId, userId, ttlMs)
    const row = yield* one(readReservation, reservationId)
    if (row === undefined) throw new Error('The reservation that was just written is there')
    return made === undefined ? repeated(row, userId) : reserved(row, admission.quotaWarnings)
  })
}

function reserved(row: Row, quotaWarnings: string[] = []): ReserveOutcome {
  return { kind: 'reserved', reservation: toReservation(row), quotaWarnings }
}

function repeated(row: Row, userId: string): ReserveOutcome {
  const reservation = toReservation(row)
  if (reservation.userId !== userId) return notFound('reservation', reservation.reservationId)
  if (reservation.state !== 'active') return notActive(reservation)
  return { kind: 'repeated', reservation, quotaWarnings: [] }
}

export type ReservationOutcome = { kind: 'done' | 'repeated'; reservation: Reservation } | Refused

interface Refused {
  kind: 'refused'
  code: Refusal
  message: string
}

/** Names the job that the slot was for. The job must be the caller's own. */
export function consumeSlot(reservationId: string, userId: string, jobId: string): Command<ReservationOutcome> {
  return command('consume', function* work(): Work<ReservationOutcome> {
    const { nowMs } = yield* lockAndCount([userId])
    const [job] = yield* each(readJobs, [[jobId]])
    if (job === undefined || text(job, 'user_id') !== userId) return notFound('job', jobId)
    const changed = yield* each(consumeReservations, [[reservationId, userId, jobId, nowMs]])
    return yield* settled(reservationId, userId, changed, (own) => own.jobId === jobId)
  })
}

export function releaseSlot(reservationId: string, userId: string): Command<ReservationOutcome> {
  return command('release_reservation', function* work(): Work<ReservationOutcome> {
    const { nowMs } = yield* lockAndCount([userId])
    const changed = yield* one(releaseReservation, reservationId, userId, nowMs)
    const rows = changed === undefined ? [] : [changed]
    return yield* settled(reservationId, userId, rows, ({ state }) => state === 'released')
  })
}

function* settled(
  reservationId: string,
  userId: string,
  changed: readonly Row[],
  isRepeat: (own: Reservation) => boolean,
): Work<ReservationOutcome> {
  const row = yield* one(readReservation, reservationId)
  if (row === undefined || text(row, 'user_id') !== userId) return notFound('reservation', reservationId)
  const reservation = toReservation(row)
  if (changed.length > 0) return { kind: 'done', reservation }
  if (isRepeat(reservation)) return { kind: 'repeated', reservation }
  return notActive(reservation)
}

function notActive({ reservationId, state }: Reservation): Refused {
  return { kind: 'refused', code: 'RESERVATION_NOT_ACTIVE', message: `The reservation ${reservationId} is ${state}` }
}

function notFound(what: string, id: string): Refused {
  return { kind: 'refused', code: 'NOT_FOUND', message: `There is no ${what} ${id}` }
}

/** The row must carry `now` of the store's clock. */
export function toReservation(row: Row): Reservation {
  return {
    reservationId: text(row, 'reservation_id'),
    userId: text(row, 'user_id'),
    state: stateOf(row),
    createdAtMs: integer(row, 'created_at'),
    expiresAtMs: integer(row, 'expires_at'),
    jobId: textOrNull(row, 'job_id'),
  }
}

function stateOf(row: Row): ReservationState {
  if (integerOrNull(row, 'consumed_at') !== null) return 'consumed'
  const [releasedAtMs, expiresAtMs] = [integerOrNull(row, 'released_at'), integer(row, 'expires_at')]
  // `expireReservations` writes the end of its time down there; whoever releases one comes before that.
  if (releasedAtMs !== null) return releasedAtMs < expiresAtMs ? 'released' : 'expired'
  return expiresAtMs <= integer(row, 'now') ? 'expired' : 'active'
}
