import type { StoredEvent } from '../../core/event.ts'
import { type Command, command } from '../port.ts'
import * as sql from '../sql/all-events.ts'
import { flag, integer, one, query, type Row, type SqlValue, text, type Work } from '../statement.ts'

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

export interface EventFilter {
  jobId: string | null
  kind: string | null
  queue: string | null
  domain: string | null
  stage: string | null
}

export const EVERY_EVENT: EventFilter = { jobId: null, kind: null, queue: null, domain: null, stage: null }

export interface PlacedEvent extends StoredEvent {
  place: EventPlace
  kind: string
  queue: string
}

export interface EventsOfAll {
  events: PlacedEvent[]
  /** Where to go on from. */
  next: EventPlace
  /** All that can be read by now was. */
  caughtUp: boolean
}

/** Looked at before the answer is given, whether or not the filter lets it through. */
const LOOK_MAX = 20_000
/** So many events are sorted at a time. */
const WINDOW_MAX = 2_000
/** In transactions. Those without events are passed over ever faster. */
const WIDTH_FIRST = 256
const WIDTH_FACTOR = 8

/**
 * The events of all jobs after a place; null when the place is ahead of the store, and so of another one. Runs as a write,
 * for a plan that does not depend on statistics: what is read of the table must be found by its small index.
 */
export function findAllEvents(after: EventPlace, filter: EventFilter, max: number): Command<EventsOfAll | null> {
  return command('find_all_events', function* work(): Work<EventsOfAll | null> {
    const horizon = yield* one(sql.readHorizon)
    const settled = integer(horizon, 'settled')
    if (after.tx > integer(horizon, 'ahead')) return null
    const walk = new Walk(after, filter, max)
    yield* filter.jobId === null ? walk.through(settled) : walk.ofJob(settled, filter.jobId)
    return walk.answer
  })
}

/** The place after all that can be read by now. */
export function findLastPlace(): Command<EventPlace> {
  return command('find_last_place', function* work(): Work<EventPlace> {
    return { tx: integer(yield* one(sql.readHorizon), 'settled'), jobId: NO_JOB, n: 0 }
  })
}

class Walk {
  #place: EventPlace
  readonly #filter: readonly SqlValue[]
  readonly #max: number
  readonly #events: PlacedEvent[] = []
  #caughtUp = false

  constructor(after: EventPlace, { kind, queue, domain, stage }: EventFilter, max: number) {
    this.#place = after
    this.#filter = [kind, queue, domain, stage]
    this.#max = max
  }

  get answer(): EventsOfAll {
    return { events: this.#events, next: this.#place, caughtUp: this.#caughtUp }
  }

  *ofJob(settled: number, jobId: string): Work<void> {
    const rows = yield* query(sql.readOfJob, ...this.#taken(), settled, this.#max, jobId)
    if (!this.#add(rows) && rows.length < this.#max) this.#reach(settled)
  }

  *through(settled: number): Work<void> {
    let width = WIDTH_FIRST
    for (let looked = 0; looked < LOOK_MAX; ) {
      const from = this.#place.tx
      if (from >= settled) return this.#reach(settled)
      const to = Math.min(from + width, settled)
      const count = integer(yield* one(sql.countWindow, from, to, WINDOW_MAX), 'count')
      if (count === WINDOW_MAX && to - from > 1) {
        width = Math.max(1, Math.floor((to - from) / WIDTH_FACTOR))
        continue
      }
      looked += count
      if (count === WINDOW_MAX) {
        if (yield* this.#partOfGroup()) return
      } else {
        if (this.#add(yield* query(sql.readWindow, ...this.#taken(), from, to, this.#max))) return
        this.#place = { tx: to, jobId: NO_JOB, n: 0 }
        if (count < WINDOW_MAX / WIDTH_FACTOR) width *= WIDTH_FACTOR
      }
    }
  }

  /** Answers with whether there is no more room. */
  *#partOfGroup(): Work<boolean> {
    const { tx, jobId, n } = this.#place
    const last = yield* one(sql.scanGroup, tx, jobId, n, WINDOW_MAX)
    if (this.#add(yield* query(sql.readGroup, ...this.#taken(), WINDOW_MAX))) return true
    if (last !== undefined) this.#place = { tx, jobId: text(last, 'job_id'), n: integer(last, 'n') }
    const found = last === undefined ? 0 : integer(last, 'found')
    const left = found > 0 || flag(yield* one(sql.isGroupLeft, tx, jobId, n), 'left')
    if (!left) this.#place = { tx: tx + 1, jobId: NO_JOB, n: 0 }
    return false
  }

  #taken(): SqlValue[] {
    const { tx, jobId, n } = this.#place
    return [tx, jobId, n, ...this.#filter]
  }

  #reach(settled: number): void {
    this.#place = { tx: settled, jobId: NO_JOB, n: 0 }
    this.#caughtUp = true
  }

  #add(rows: readonly Row[]): boolean {
    for (const event of rows.flatMap((row) => toEvents(row, this.#place))) {
      if (this.#events.length === this.#max) return true
      this.#events.push(event)
      this.#place = event.place
    }
    return this.#events.length === this.#max
  }
}

/** That a job was made is told from the job itself, right before its second event. */
function toEvents(row: Row, after: EventPlace): PlacedEvent[] {
  const [tx, jobId] = [integer(row, 'tx'), text(row, 'job_id')]
  const event: PlacedEvent = {
    place: { tx, jobId, n: integer(row, 'n') },
    kind: text(row, 'kind'),
    queue: text(row, 'queue'),
    jobId,
    domain: text(row, 'domain'),
    n: integer(row, 'n'),
    stage: text(row, 'stage'),
    seq: integer(row, 'seq'),
    data: text(row, 'data'),
    createdAtMs: integer(row, 'created_at'),
  }
  const isTold = after.tx === tx && after.jobId === jobId && after.n === 1
  if (!flag(row, 'begins') || isTold) return [event]
  const made = { n: 1, stage: 'run', seq: 1, data: '{"state":"PENDING"}', createdAtMs: integer(row, 'job_created_at') }
  return [{ ...event, ...made, place: { tx, jobId, n: 1 } }, event]
}
