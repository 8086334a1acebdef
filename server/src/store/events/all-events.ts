import type { EventName, StoredEvent } from '../../core/events/event.ts'
import { type Command, command } from '../port.ts'
import { each, flag, integer, query, type Row, type SqlValue, text, type Work } from '../statement.ts'
import * as sql from './all-events.sql.ts'
import { type EventPlace, type Placed, type Reading, Walk, type Walked } from './walk-events.ts'

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
  { jobId, kind, queue, domain, stage }: EventFilter,
  max: number,
): Command<Walked<PlacedEvent> | null> {
  const filter = [kind, queue, domain, stage]
  return command('find_all_events', function* work(): Work<Walked<PlacedEvent> | null> {
    const walk = new Walk(after, eventsThrough(filter), max)
    return yield* walk.to((settled) => {
      if (jobId === null) return walk.through(settled)
      return walk.once(settled, (place, room) =>
        query(sql.readOfJob, ...valuesOf(place), ...filter, settled, room, jobId),
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
  const rows = names.flatMap(({ place: { jobId, n } }) => (n === 1 ? [n, n + 1] : [n]).map((each) => [jobId, each]))
  return command('find_named', function* work(): Work<StoredEvent[]> {
    const found = yield* each(sql.readNamed, rows)
    const events = found.flatMap((row) => toEvents(row, null)).sort((a, b) => a.n - b.n)
    return events.filter(({ jobId, n }) => wanted.delete(`${jobId} ${n}`))
  })
}

const valuesOf = ({ tx, jobId, n }: EventPlace): SqlValue[] => [tx, jobId, n]

function eventsThrough(filter: readonly SqlValue[]): Reading<PlacedEvent> {
  return {
    pieces: (from, to) => [[from, to]],
    window: (after, from, to, max) => query(sql.readWindow, ...valuesOf(after), ...filter, from, to, max),
    group: (after, lookMax) => query(sql.readGroup, ...valuesOf(after), ...filter, lookMax),
    toFound: toEvents,
    bytesOf: ({ data }) => Buffer.byteLength(data),
  }
}

function namesWithout(passed: Passed): Reading<PlacedName> {
  function pieces(from: number, to: number): [number, number][] {
    const ends = passed(from, to)
    const starts = [from, ...ends.map((tx) => tx + 1)]
    return starts.map((start, i): [number, number] => [start, ends[i] ?? to]).filter(([start, end]) => start < end)
  }
  return {
    pieces,
    window: (after, from, to, max) =>
      each(
        sql.readNames,
        pieces(from, to).map((piece) => [...valuesOf(after), ...piece, max]),
      ),
    group: (after, lookMax) => query(sql.readNamesOfGroup, ...valuesOf(after), lookMax),
    toFound: toNames,
    bytesOf: () => 0,
  }
}

/** That a job was made is told from the job itself, right before its second event. */
const FIRST = { n: 1, stage: 'run', seq: 1, data: '{"state":"PENDING"}' }

function begins(row: Row, { tx, jobId }: EventPlace, after: EventPlace | null): boolean {
  const isTold = after?.tx === tx && after.jobId === jobId && after.n === FIRST.n
  return flag(row, 'begins') && !isTold
}

function placeOf(row: Row): EventPlace {
  return { tx: integer(row, 'tx'), jobId: text(row, 'job_id'), n: integer(row, 'n') }
}

function toNames(row: Row, after: EventPlace): PlacedName[] {
  const place = placeOf(row)
  const { jobId } = place
  const name: PlacedName = { place, jobId, stage: text(row, 'stage'), seq: integer(row, 'seq') }
  if (!begins(row, place, after)) return [name]
  return [{ place: { ...place, n: FIRST.n }, jobId, stage: FIRST.stage, seq: FIRST.seq }, name]
}

function toEvents(row: Row, after: EventPlace | null): PlacedEvent[] {
  const place = placeOf(row)
  const { jobId, n } = place
  const event: PlacedEvent = {
    place,
    kind: text(row, 'kind'),
    queue: text(row, 'queue'),
    jobId,
    domain: text(row, 'domain'),
    n,
    stage: text(row, 'stage'),
    seq: integer(row, 'seq'),
    data: text(row, 'data'),
    createdAtMs: integer(row, 'created_at'),
  }
  if (!begins(row, place, after)) return [event]
  return [{ ...event, ...FIRST, createdAtMs: integer(row, 'job_created_at'), place: { ...place, n: FIRST.n } }, event]
}
