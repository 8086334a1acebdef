import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, type Work } from '../statement.ts'
import * as sql from './all-events.sql.ts'

/**
 * A place among the events of all jobs: the transaction that wrote an event, its job, its number there. Transactions are read
 * only once every earlier one has ended, so that what commits late is never skipped (hazard 13).
 */
export interface EventPlace {
  tx: number
  jobId: string
  n: number
}

const NO_JOB = '00000000-0000-0000-0000-000000000000'
export const FIRST_EVENT: EventPlace = { tx: 0, jobId: NO_JOB, n: 0 }

export function placeBefore(tx: number): EventPlace {
  return { ...FIRST_EVENT, tx }
}

export interface Placed {
  place: EventPlace
}

/** The transactions from `low` on and before `high`. */
export interface Piece {
  low: number
  high: number
}

export function afterPlace({ tx, jobId, n }: EventPlace) {
  return { after_tx: tx, after_job_id: jobId, after_n: n }
}

/** How a walk reads the events after a place. */
export interface Reading<Found extends Placed, Row> {
  /** The parts to read of the transactions from one on and before another. */
  pieces(from: number, to: number): readonly Piece[]
  /** Of the transactions from one on and before another. */
  window(after: EventPlace, piece: Piece, max: number): Work<Row[]>
  /** Of the place's own transaction, looking at so many events. */
  group(after: EventPlace, lookMax: number): Work<Row[]>
  toFound(row: Row, after: EventPlace): Found[]
  /** How much of what an answer may have it takes. */
  bytesOf(found: Found): number
}

export interface Walked<Found> {
  events: Found[]
  /** Where to go on from. */
  next: EventPlace
  /** All that can be read by now was. */
  caughtUp: boolean
}

/** An answer ends with the event that brings it here. */
const BYTES_MAX = 4 * 1024 * 1024
/** Looked at before the answer is given, whether or not the filter lets it through. */
const LOOK_MAX = 20_000
/** So many events are sorted at a time. */
const WINDOW_MAX = 2_000
/** In transactions. Those without events are passed over ever faster. */
const WIDTH_FIRST = 256
const WIDTH_FACTOR = 8

/** The place after all that can be read by now. */
export function findLastPlace(): Command<EventPlace> {
  return command('find_last_place', function* work(): Work<EventPlace> {
    return placeBefore((yield* exactlyOne(sql.readHorizon, {})).settled)
  })
}

/** Goes through the events of all jobs in the order of their places. */
export class Walk<Found extends Placed, Row> {
  #place: EventPlace
  readonly #reading: Reading<Found, Row>
  readonly #max: number
  readonly #found: Found[] = []
  #bytes = 0
  #caughtUp = false

  constructor(after: EventPlace, reading: Reading<Found, Row>, max: number) {
    this.#place = after
    this.#reading = reading
    this.#max = max
  }

  /** Goes up to where every transaction has ended; null when the place is ahead of the store. */
  *to(go: (settled: number) => Work<void>): Work<Walked<Found> | null> {
    const { ahead, settled } = yield* exactlyOne(sql.readHorizon, {})
    if (this.#place.tx > ahead) return null
    yield* go(settled)
    return { events: this.#found, next: this.#place, caughtUp: this.#caughtUp }
  }

  /** What is found at once, if that is all there is before a transaction. */
  *once(settled: number, read: (after: EventPlace, max: number) => Work<Row[]>): Work<void> {
    const rows = yield* read(this.#place, this.#max)
    if (!this.#add(rows) && rows.length < this.#max) this.#reach(settled)
  }

  *through(settled: number): Work<void> {
    let width = WIDTH_FIRST
    for (let looked = 0; looked < LOOK_MAX; ) {
      const from = this.#place.tx
      if (from >= settled) return this.#reach(settled)
      const to = Math.min(from + width, settled)
      const count = yield* this.#count(from, to)
      if (count === WINDOW_MAX && to - from > 1) {
        width = Math.max(1, Math.floor((to - from) / WIDTH_FACTOR))
        continue
      }
      looked += count
      if (count === WINDOW_MAX) {
        if (yield* this.#partOfGroup()) return
      } else {
        if (this.#add(yield* this.#reading.window(this.#place, { low: from, high: to }, this.#max))) return
        this.#place = placeBefore(to)
        if (count < WINDOW_MAX / WIDTH_FACTOR) width *= WIDTH_FACTOR
      }
    }
  }

  /** Up to WINDOW_MAX. */
  *#count(from: number, to: number): Work<number> {
    const pieces = this.#reading.pieces(from, to).map((piece) => ({ ...piece, max: WINDOW_MAX }))
    const rows = yield* each(sql.countPieces, pieces)
    const count = rows.reduce((sum, row) => sum + row.count, 0)
    return Math.min(WINDOW_MAX, count)
  }

  /** Answers with whether there is no more room. */
  *#partOfGroup(): Work<boolean> {
    const { tx } = this.#place
    const after = afterPlace(this.#place)
    const last = yield* one(sql.scanGroup, { ...after, look_max: WINDOW_MAX })
    if (this.#add(yield* this.#reading.group(this.#place, WINDOW_MAX))) return true
    if (last !== undefined) this.#place = { tx, jobId: last.job_id, n: last.n }
    const left = (last?.found ?? 0) > 0 || (yield* one(sql.isGroupLeft, after))?.left === true
    if (!left) this.#place = placeBefore(tx + 1)
    return false
  }

  #reach(settled: number): void {
    this.#place = placeBefore(settled)
    this.#caughtUp = true
  }

  #add(rows: readonly Row[]): boolean {
    for (const event of rows.flatMap((row) => this.#reading.toFound(row, this.#place))) {
      if (this.#isFull()) return true
      this.#found.push(event)
      this.#bytes += this.#reading.bytesOf(event)
      this.#place = event.place
    }
    return this.#isFull()
  }

  #isFull(): boolean {
    return this.#found.length === this.#max || this.#bytes >= BYTES_MAX
  }
}
