import type { EventName, StoredEvent } from '../../core/events/event.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './all-events.sql.ts'

export interface EventFilter {
  jobId: string | null
  kind: string | null
  queue: string | null
  domain: string | null
  stage: string | null
}

export const EVERY_EVENT: EventFilter = { jobId: null, kind: null, queue: null, domain: null, stage: null }

export interface PlacedEvent extends StoredEvent, Placed {
  kind: string
  queue: string
}

interface PlacedName extends EventName, Placed {}

/**
 * Reads the events of all jobs after a place; null if the place is ahead of the store, and so belongs to another store.
 * It runs as a write, because only write transactions always use index plans.
 */
export function findAllEvents(
  after: EventPlace,
  { jobId, ...filter }: EventFilter,
  max: number,
): Command<Walked<PlacedEvent> | null> {
  return command('find_all_events', function* work(): Work<Walked<PlacedEvent> | null> {
    const walk = new Walk(after, eventsThrough(filter), max)
    return yield* walk.to((settled) => {
      if (jobId === null) return walk.through(settled)
      return walk.once(settled, (place, max) =>
        query(sql.readOfJob, { ...afterPlace(place), ...filter, high: settled, max, job_id: jobId }),
      )
    })
  })
}

/** The transactions, sorted, from `from` on and before `to` that need not be read. */
type Passed = (from: number, to: number) => readonly number[]

/** The same for all events except those passed over, without their data, which most callers do not need. */
export function findEventNames(
  after: EventPlace,
  max: number,
  passed: Passed = () => [],
): Command<Walked<PlacedName> | null> {
  return command('find_event_names', function* work(): Work<Walked<PlacedName> | null> {
    const walk = new Walk(after, namesWithout(passed), max)
    return yield* walk.to((settled) => walk.through(settled))
  })
}

/** Reads those of the events that still exist, sorted by number. */
export function findNamed(names: readonly PlacedName[]): Command<StoredEvent[]> {
  const wanted = new Set(names.map(({ place }) => `${place.jobId} ${place.n}`))
  // The first event may have to be derived from the second.
  const rows = names.flatMap(({ place: { jobId, n } }) =>
    (n === 1 ? [n, n + 1] : [n]).map((n) => ({ job_id: jobId, n })),
  )
  return command('find_named', function* work(): Work<StoredEvent[]> {
    const found = yield* each(sql.readNamed, rows)
    const events = found.flatMap((row) => toEvents(row, null)).sort((a, b) => a.n - b.n)
    return events.filter(({ jobId, n }) => wanted.delete(`${jobId} ${n}`))
  })
}

type EventRow = RowOf<typeof sql.readWindow>
type NameRow = RowOf<typeof sql.readNames>

function eventsThrough(filter: Omit<EventFilter, 'jobId'>): Reading<PlacedEvent, EventRow> {
  return {
    pieces: (low, high) => [{ low, high }],
    window: (after, piece, max) => query(sql.readWindow, { ...afterPlace(after), ...filter, ...piece, max }),
    toFound: toEvents,
    bytesOf: ({ data }) => Buffer.byteLength(data),
  }
}

function namesWithout(passed: Passed): Reading<PlacedName, NameRow> {
  function pieces(from: number, to: number): Piece[] {
    const ends = passed(from, to)
    const starts = [from, ...ends.map((tx) => tx + 1)]
    return starts.map((low, i) => ({ low, high: ends[i] ?? to })).filter(({ low, high }) => low < high)
  }
  return {
    pieces,
    window: (after, { low, high }, max) =>
      each(
        sql.readNames,
        pieces(low, high).map((piece) => ({ ...afterPlace(after), ...piece, max })),
      ),
    toFound: toNames,
    bytesOf: () => 0,
  }
}

/** The first event is derived from the job, right before its second event. */
const FIRST = { n: 1, stage: 'run', seq: 1, data: '{"state":"PENDING"}' }

function begins(row: NameRow, { tx, jobId }: EventPlace, after: EventPlace | null): boolean {
  const isTold = after?.tx === tx && after.jobId === jobId && after.n === FIRST.n
  return row.begins && !isTold
}

function placeOf({ tx, job_id, n }: NameRow): EventPlace {
  return { tx, jobId: job_id, n }
}

function toNames(row: NameRow, after: EventPlace): PlacedName[] {
  const place = placeOf(row)
  const { jobId } = place
  const name: PlacedName = { place, jobId, stage: row.stage, seq: row.seq }
  if (!begins(row, place, after)) return [name]
  return [{ place: { ...place, n: FIRST.n }, jobId, stage: FIRST.stage, seq: FIRST.seq }, name]
}

function toEvents(row: EventRow, after: EventPlace | null): PlacedEvent[] {
  const place = placeOf(row)
  const event: PlacedEvent = {
    place,
    kind: row.kind,
    queue: row.queue,
    jobId: row.job_id,
    domain: row.domain,
    n: row.n,
    stage: row.stage,
    seq: row.seq,
    data: row.data,
    createdAtMs: row.created_at,
  }
  if (!begins(row, place, after)) return [event]
  return [{ ...event, ...FIRST, createdAtMs: row.job_created_at, place: { ...place, n: FIRST.n } }, event]
}

/**
 * A place among the events of all jobs: the transaction of an event, its job, and its number. A transaction is read
 * only after all earlier ones have ended, so that a late commit is never skipped (hazard 13).
 */
export interface EventPlace {
  tx: number
  jobId: string
  n: number
}

export const FIRST_EVENT: EventPlace = { tx: 0, jobId: FIRST_ID, n: 0 }

function placeBefore(tx: number): EventPlace {
  return { ...FIRST_EVENT, tx }
}

interface Placed {
  place: EventPlace
}

/** The transactions from `low` on and before `high`. */
interface Piece {
  low: number
  high: number
}

function afterPlace({ tx, jobId, n }: EventPlace) {
  return { after_tx: tx, after_job_id: jobId, after_n: n }
}

/** How a walk reads the events after a place. */
interface Reading<Found extends Placed, Row> {
  /** The parts of a range of transactions that must be read. */
  pieces(from: number, to: number): readonly Piece[]
  /** Reads events of the piece's transactions. */
  window(after: EventPlace, piece: Piece, max: number): Work<Row[]>
  toFound(row: Row, after: EventPlace): Found[]
  /** The size of the event, for the limit of an answer. */
  bytesOf(found: Found): number
}

interface Walked<Found> {
  events: Found[]
  /** The place to continue from. */
  next: EventPlace
  /** True if everything that can be read now was read. */
  caughtUp: boolean
}

/** An answer ends with the event that reaches this size. */
const BYTES_MAX = 4 * 1024 * 1024
/** The most events that one answer looks at, including those that the filter drops. */
const LOOK_MAX = 20_000
/** The most events that are sorted at a time, unless one transaction has more: a lease or a restore may have thousands. */
const WINDOW_MAX = 2_000
/** The width of a window, in transactions. It grows while there are few events. */
const WIDTH_FIRST = 256
const WIDTH_FACTOR = 8

/** The place after everything that can be read now. */
export function findLastPlace(): Command<EventPlace> {
  return command('find_last_place', function* work(): Work<EventPlace> {
    return placeBefore((yield* exactlyOne(sql.readHorizon, {})).settled)
  })
}

/** Walks through the events of all jobs in the order of their places. */
class Walk<Found extends Placed, Row> {
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

  /** Walks up to the first transaction that has not ended; null if the place is ahead of the store. */
  *to(go: (settled: number) => Work<void>): Work<Walked<Found> | null> {
    const { ahead, settled } = yield* exactlyOne(sql.readHorizon, {})
    if (this.#place.tx > ahead) return null
    yield* go(settled)
    return { events: this.#found, next: this.#place, caughtUp: this.#caughtUp }
  }

  /** Reads once, if that is all before the transaction `settled`. */
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
      if (this.#add(yield* this.#reading.window(this.#place, { low: from, high: to }, this.#max))) return
      this.#place = placeBefore(to)
      if (count < WINDOW_MAX / WIDTH_FACTOR) width *= WIDTH_FACTOR
    }
  }

  /** Counts up to WINDOW_MAX. */
  *#count(from: number, to: number): Work<number> {
    const pieces = this.#reading.pieces(from, to).map((piece) => ({ ...piece, max: WINDOW_MAX }))
    const rows = yield* each(sql.countPieces, pieces)
    const count = rows.reduce((sum, row) => sum + row.count, 0)
    return Math.min(WINDOW_MAX, count)
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
