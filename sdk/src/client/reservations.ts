import type { NewReservationShape, Page, ReservationShape } from '../protocol/index.ts'
import type { ReservationListFilter, Transport } from './transport.ts'
import { worded } from './wording.ts'

/** Slots of the quota that are held before their jobs exist. */
export class Reservations {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /** Holds a slot, for 300 s by default; rejects with `QuotaExceeded` if none is free. */
  reserve({ ttlSeconds, signal }: { ttlSeconds?: number; signal?: AbortSignal } = {}): Promise<NewReservationShape> {
    return worded(this.#transport.reserve(ttlSeconds, signal))
  }

  /** Gives the slot to a job that exists. A submission with `reservationId` does this by itself. */
  consume(reservationId: string, jobId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ReservationShape> {
    return worded(this.#transport.consume(reservationId, jobId, signal))
  }

  /** Gives the slot back. */
  release(reservationId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ReservationShape> {
    return this.#transport.release(reservationId, signal)
  }

  /** Newest first. */
  list(filter: ReservationListFilter = {}, { signal }: { signal?: AbortSignal } = {}): Promise<Page<ReservationShape>> {
    return this.#transport.reservations(filter, signal)
  }
}
