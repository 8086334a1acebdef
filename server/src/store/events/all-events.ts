import type { EventName, StoredEvent } from '../../core/events/event.ts'
import { type Command, command } from '../port.ts'
import { each, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './all-events.sql.ts'
import { afterPlace, type EventPlace, type Piece, type Placed, type Reading, Walk, type Walked } from './walk-events.ts'

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

export interface PlacedName extends EventName, Placed {}

/**
 * The events of all jobs after a place; null when the place is ahead of the store, and so of another one. Runs as a write,
 * for a plan that does not depend on statistics: what is read of the table must be found by its index.
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

/** Those of the transactions from one on and before another, in their order, that need not be looked at. */
export type Passed = (from: number, to: number) => readonly number[]

/** The same of all events but those passed over, without what they say: most of them nobody wants to know. */
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

/** Those of the events that are still there, each job's in their order. */
export function findNamed(names: readonly PlacedName[]): Command<StoredEvent[]> {
  const wanted = new Set(names.map(({ place }) => `${place.jobId} ${place.n}`))
  // The first one may have to be told from the second.
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
    group: (after, lookMax) => query(sql.readGroup, { ...afterPlace(after), ...filter, look_max: lookMax }),
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
    group: (after, lookMax) => query(sql.readNamesOfGroup, { ...afterPlace(after), look_max: lookMax }),
    toFound: toNames,
    bytesOf: () => 0,
  }
}

/** That a job was made is told from the job itself, right before its second event. */
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
