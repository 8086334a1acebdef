import {
  DEFAULT_RESERVATION_TTL_SECONDS,
  IchidoError,
  type NewReservationShape,
  type Page,
  type ReservationShape,
} from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { type Caller, can, mayRead } from '../../core/limits/roles.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { findReservation, listReservations } from '../../store/limits/quotas.ts'
import type { Command } from '../../store/port.ts'
import { consumeSlot, type Reservation, releaseSlot, reserveSlot } from '../../store/submission/reservations.ts'
import { iso, notFound, renderPage, requireId, visibleTo } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { within } from '../wait.ts'

/** As long as the store retries a command. */
const TURN_WAIT_MAX_MS = 15_000

export interface ReservationService {
  /** With an id that the caller chooses, the caller can repeat the call if the answer got lost. */
  reserve(caller: Caller, ttlSeconds?: number, reservationId?: string): Promise<NewReservationShape>
  consume(caller: Caller, reservationId: string, jobId: string): Promise<ReservationShape>
  /** An operator may give back the slot of another user. */
  release(caller: Caller, reservationId: string): Promise<ReservationShape>
  get(caller: Caller, reservationId: string): Promise<ReservationShape>
  list(caller: Caller, filter: ReservationFilter): Promise<Page<ReservationShape>>
}

interface ReservationFilter {
  userId: string | null
  activeOnly: boolean
  limit: number
  cursor: string | null
}

export function createReservationService({ world, store, meter }: Deps): ReservationService {
  const turns = new PerUserQueue(world)
  const write = <T>(userId: string, command: Command<T>) => turns.take(userId, () => store.write(command))

  /** Never changes, so it may be read before the slot is locked. */
  async function ownerOf(caller: Caller, reservationId: string): Promise<string> {
    if (!can(caller, 'operate')) return caller.userId
    const found = await store.read(findReservation(reservationId))
    if (found === null) throw notFound('reservation', reservationId)
    return found.userId
  }

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
      const owner = await ownerOf(caller, reservationId)
      const by = owner === caller.userId ? null : { actor: caller.userId, id: world.uuid() }
      const outcome = await write(owner, releaseSlot(reservationId, owner, by))
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

    async list(caller, filter) {
      const visible = visibleTo(caller, filter)
      if (visible === null) return { data: [], next_cursor: null }
      const { userId, activeOnly, limit, cursor } = visible
      return renderPage(await store.read(listReservations(userId, activeOnly, limit, cursor)), renderReservation)
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

/** One call of a user at a time: several would wait for the same row, each on a connection that other users need. */
export class PerUserQueue {
  readonly #world: World
  readonly #last = new Map<string, Promise<void>>()

  constructor(world: World) {
    this.#world = world
  }

  async take<T>(user: string, call: () => Promise<T>): Promise<T> {
    const before = this.#last.get(user)
    const mine = Promise.withResolvers<void>()
    this.#last.set(user, mine.promise)
    try {
      if (before !== undefined) await this.#await(before)
      return await call()
    } finally {
      // The next call also waits for the calls before, if this one has given up.
      void Promise.resolve(before).then(mine.resolve)
      if (this.#last.get(user) === mine.promise) void mine.promise.then(() => this.#forget(user, mine.promise))
    }
  }

  async #await(before: Promise<void>): Promise<void> {
    const isLate = await within(
      this.#world,
      TURN_WAIT_MAX_MS,
      before.then(() => false),
      true,
    )
    if (isLate) throw new StoreUnavailable('Timed out waiting for a lock on this user')
  }

  #forget(user: string, mine: Promise<void>): void {
    if (this.#last.get(user) === mine) this.#last.delete(user)
  }
}
