import { IchidoError, type NewReservationShape, type Page, type ReservationShape } from '@ichido/sdk/protocol'
import { type Caller, mayRead, visibleUser } from '../../core/limits/roles.ts'
import { findReservation, listReservations } from '../../store/limits/quotas.ts'
import type { Command } from '../../store/port.ts'
import { consumeSlot, type Reservation, releaseSlot, reserveSlot } from '../../store/submission/reservations.ts'
import { PerUserQueue } from '../batching/per-user-queue.ts'
import type { Deps } from '../deps.ts'
import { iso } from '../iso.ts'
import { notFound, requireId } from '../not-found.ts'

export const DEFAULT_RESERVATION_TTL_SECONDS = 300

export interface ReservationService {
  /** With an id that the caller has chosen it can be asked for again when the answer got lost. */
  reserve(caller: Caller, ttlSeconds?: number, reservationId?: string): Promise<NewReservationShape>
  consume(caller: Caller, reservationId: string, jobId: string): Promise<ReservationShape>
  release(caller: Caller, reservationId: string): Promise<ReservationShape>
  get(caller: Caller, reservationId: string): Promise<ReservationShape>
  list(caller: Caller, filter: ReservationFilter): Promise<Page<ReservationShape>>
}

export interface ReservationFilter {
  userId: string | null
  activeOnly: boolean
  limit: number
  cursor: string | null
}

export function createReservationService({ world, store, meter }: Deps): ReservationService {
  const turns = new PerUserQueue(world)
  const write = <T>(userId: string, command: Command<T>) => turns.take(userId, () => store.write(command))
  return {
    async reserve(caller, ttlSeconds = DEFAULT_RESERVATION_TTL_SECONDS, chosen) {
      const ttlMs = Math.round(ttlSeconds * 1000)
      const { userId } = caller
      const slot = reserveSlot(chosen ?? world.uuid(), userId, ttlMs, chosen !== undefined)
      const outcome = await write(userId, slot)
      if (outcome.kind === 'refused') {
        if (outcome.code === 'QUOTA_EXCEEDED') meter.reservation('refused')
        throw new IchidoError(outcome.code, outcome.message)
      }
      if (outcome.kind === 'reserved') meter.reservation('reserved')
      return { ...renderReservation(outcome.reservation), quota_warnings: outcome.quotaWarnings }
    },

    async consume(caller, reservationId, jobId) {
      requireId('reservation', reservationId)
      requireId('job', jobId)
      const outcome = await write(caller.userId, consumeSlot(reservationId, caller.userId, jobId))
      if (outcome.kind === 'refused') throw new IchidoError(outcome.code, outcome.message)
      if (outcome.kind === 'done') meter.reservation('consumed')
      return renderReservation(outcome.reservation)
    },

    async release(caller, reservationId) {
      requireId('reservation', reservationId)
      const outcome = await write(caller.userId, releaseSlot(reservationId, caller.userId))
      if (outcome.kind === 'refused') throw new IchidoError(outcome.code, outcome.message)
      if (outcome.kind === 'done') meter.reservation('released')
      return renderReservation(outcome.reservation)
    },

    async get(caller, reservationId) {
      requireId('reservation', reservationId)
      const found = await store.read(findReservation(reservationId))
      if (found === null || !mayRead(caller, found.userId)) {
        throw notFound('reservation', reservationId)
      }
      return renderReservation(found)
    },

    async list(caller, { userId, activeOnly, limit, cursor }) {
      const own = visibleUser(caller)
      if (own !== null && userId !== null && userId !== own) return { data: [], next_cursor: null }
      const { rows, next } = await store.read(listReservations(own ?? userId, activeOnly, limit, cursor))
      return { data: rows.map(renderReservation), next_cursor: next }
    },
  }
}

function renderReservation(reservation: Reservation): ReservationShape {
  return {
    reservation_id: reservation.reservationId,
    user_id: reservation.userId,
    state: reservation.state,
    created_at: iso(reservation.createdAtMs),
    expires_at: iso(reservation.expiresAtMs),
    job_id: reservation.jobId,
  }
}
