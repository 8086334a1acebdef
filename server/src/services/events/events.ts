import { type EventOfAllShape, type EventShape, IchidoError, type JobStateShape } from '@ichido/sdk/protocol'
import { isUuid } from '../../contract/common.ts'
import type { ForeignEvent, IngestedEvent } from '../../core/events/event.ts'
import { findJsonProblem } from '../../core/json/request-json.ts'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import { BadValue } from '../../core/node/store-errors.ts'
import { isFinal } from '../../core/run/run-state.ts'
import {
  type EventFilter,
  type EventPlace,
  findAllEvents,
  findLastPlace,
  type PlacedEvent,
} from '../../store/events/all-events.ts'
import { type EventRow, findCursorOfSeq, findEvents, findLatestState } from '../../store/events/events.ts'
import { type IngestOutcome, ingestEvents } from '../../store/events/ingest-events.ts'
import { type PublishItem, type PublishOutcome, publishBatch } from '../../store/events/publish.ts'
import { jobIdOf } from '../../store/runs/run-facts.ts'
import { iso, notFound, requireId } from '../answers.ts'
import { Batcher } from '../batching/batcher.ts'
import type { Deps } from '../deps.ts'
import { waitFor } from '../wait.ts'
import { UNKNOWN_CURSOR } from './job-feed.ts'

export type { EventFilter } from '../../store/events/all-events.ts'
export { type EventPlace, FIRST_EVENT } from '../../store/events/all-events.ts'

export interface EventList {
  events: { place: EventPlace; shape: EventOfAllShape }[]
  next: EventPlace
  caughtUp: boolean
}

export interface NewEvent {
  stage: string
  seq: number
  data?: unknown
}

export interface EventService {
  /** False: the event was already stored. */
  publish(workerId: string, leaseId: string, event: NewEvent): Promise<boolean>
  /** Publishes several events of one run, or none if one is refused. */
  publishAll(workerId: string, leaseId: string, events: readonly NewEvent[]): Promise<boolean[]>
  /** A page of events after a cursor. It waits up to `waitMs` if there is none yet. */
  read(
    caller: Caller,
    jobId: string,
    after: number,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<{ events: EventShape[]; ended: boolean }>
  /** The cursor after which a reader continues that has seen this seq. Readers that have seen nothing also send 0. */
  cursorOfSeq(jobId: string, lastSeq: number): Promise<number>
  /** The state of the job, its last event, and the last event of each stage. */
  state(caller: Caller, jobId: string): Promise<JobStateShape>
  /** The events of all jobs after a place, for operators; null if the place belongs to another store. */
  list(filter: EventFilter, after: EventPlace, limit: number): Promise<EventList | null>
  /** The place after all events that can be listed now. */
  lastPlace(): Promise<EventPlace>
}

const PAGE_MAX = 1_000
/** 1,000 events may have 64 MiB. */
const PAGE_BYTES_MAX = 4 * 1024 * 1024
const DATA_BYTES_MAX = 64 * 1024
/** Small batches are often of one run, and would wait for its lock. Together they are one write to each reader. */
const BATCH = { itemsMax: 1_000, bytesMax: 8 * 1024 * 1024, inFlightMax: 2, besideMin: 16 }
/** One batch at a time, because two batches could change the order of a job's events. */
const INGEST_BATCH = { itemsMax: 500, bytesMax: 8 * 1024 * 1024, inFlightMax: 1 }
const REFUSED: IngestOutcome = { kind: 'refused' }

export function createEventService(deps: Deps): EventService {
  const { world, store, bus, evidence, meter } = deps
  const batcher = new Batcher<PublishItem, PublishOutcome>({
    name: 'publish',
    world,
    ...BATCH,
    bytesOf: ({ events }) => events.reduce((sum, { data }) => sum + data.length + 200, 0),
    userOf: (item) => item.workerId,
    onBatch: meter.batch,
    async run(items) {
      const outcomes = await store.write(publishBatch(items, false)).catch((error: unknown) => {
        if (!(error instanceof BadValue)) throw error
        return store.write(publishBatch(items, true))
      })
      const stored = outcomes.filter((outcome) => outcome.kind === 'stored')
      const news = stored.flatMap(({ events }) => events.filter((event) => event !== null))
      for (const [jobId, events] of Map.groupBy(news, ({ jobId }) => jobId)) {
        bus.wake([`job:${jobId}`], { cursor: events.at(-1)?.n ?? 0, events })
      }
      deps.relay?.stored(stored[0]?.tx ?? null, news)
      return outcomes
    },
  })

  async function publishAll(workerId: string, leaseId: string, events: readonly NewEvent[]): Promise<boolean[]> {
    const jobId = jobIdOf(leaseId)
    if (jobId === null) throw notFound('lease', leaseId)
    const outcome = await batcher.add({ jobId, workerId, leaseId, events: events.map(toItem) })
    if (outcome.kind === 'refused') {
      meter.fenced('publish', outcome.reason)
      evidence.refused(jobId, outcome.reason)
      throw new IchidoError(outcome.reason)
    }
    if (outcome.kind === 'invalid') {
      const { field, message } = outcome
      throw new IchidoError('INVALID_PAYLOAD', `${field} ${message}`, { field })
    }
    const repeats = outcome.events.filter((event) => event === null).length
    if (repeats > 0) evidence.count(outcome.jobId, 'duplicatesRefused', repeats)
    return outcome.events.map((event) => event !== null)
  }

  return {
    async publish(workerId, leaseId, event) {
      return (await publishAll(workerId, leaseId, [event])).includes(true)
    },
    publishAll,

    async read(caller, jobId, after, waitMs, signal) {
      requireId('job', jobId)
      const look = async () => {
        const found = await store.read(findEvents(jobId, after, PAGE_MAX, PAGE_BYTES_MAX))
        if (found === null || !mayRead(caller, found.userId)) throw notFound('job', jobId)
        const events = found.events.map(renderEvent)
        const seen = events.at(-1)?.cursor ?? after
        // A page that is not full has all stored events. Retention may have removed the last ones.
        const ended = isFinal(found.state) && (seen >= found.lastN || !isFull(found.events))
        return events.length > 0 || ended ? { events, ended } : null
      }
      return (await waitFor(deps, [`job:${jobId}`], waitMs, look, signal)) ?? { events: [], ended: false }
    },

    async cursorOfSeq(jobId, lastSeq) {
      return (await store.read(findCursorOfSeq(jobId, lastSeq))) ?? (lastSeq === 0 ? 0 : UNKNOWN_CURSOR)
    },

    async state(caller, jobId) {
      requireId('job', jobId)
      const found = await store.read(findLatestState(jobId))
      if (found === null || !mayRead(caller, found.userId)) throw notFound('job', jobId)
      const stages = found.stages.map(renderEvent)
      const last = found.last === undefined ? [] : [renderEvent(found.last)]
      return {
        job_id: jobId,
        domain: found.rules.domain,
        state: found.state,
        attempt: found.attempt,
        // An event of a stage may have been stored after the last event was read.
        event: [...last, ...stages].reduce<EventShape | null>((a, b) => (a && a.cursor >= b.cursor ? a : b), null),
        stages: Object.fromEntries(stages.map((event) => [event.stage, event])),
      }
    },

    async list(filter, after, limit) {
      const found = await store.write(findAllEvents(after, filter, limit))
      return (
        found && { ...found, events: found.events.map((event) => ({ place: event.place, shape: renderPlaced(event) })) }
      )
    },

    lastPlace: () => store.read(findLastPlace()),
  }
}

function renderPlaced({ jobId, kind, queue, domain, n, stage, seq, data, createdAtMs }: PlacedEvent): EventOfAllShape {
  const timestamp = iso(createdAtMs)
  return { job_id: jobId, kind, queue, domain, cursor: n, stage, seq, data: JSON.parse(data) as unknown, timestamp }
}

function toItem({ stage, seq, data }: NewEvent, i: number): PublishItem['events'][number] {
  const text = JSON.stringify(data ?? null)
  if (Buffer.byteLength(text) <= DATA_BYTES_MAX) return { stage, seq, data: text }
  throw new IchidoError('PAYLOAD_TOO_LARGE', `An event's data may have at most ${DATA_BYTES_MAX} bytes`, {
    field: `events.${i}.data`,
  })
}

function isFull(page: readonly EventRow[]): boolean {
  const bytes = page.reduce((sum, { data }) => sum + Buffer.byteLength(data), 0)
  return page.length === PAGE_MAX || bytes >= PAGE_BYTES_MAX
}

function renderEvent({ n, stage, seq, data, created_at }: EventRow): EventShape {
  return { cursor: n, stage, seq, data: JSON.parse(data) as unknown, timestamp: iso(created_at) }
}

/** Stores the events that other programs put into streams of Redis. */
export interface ForeignEvents {
  /**
   * Stores each event once, and keeps the order of the events of a job. The answer is null for an entry that is not an event
   * or cannot be stored. Such entries are only counted, because no program waits for an answer. It throws if the store does
   * not answer. Then the caller sends all of them again.
   */
  ingest(events: readonly (ForeignEvent | null)[]): Promise<(IngestedEvent | null)[]>
}

export function createForeignEvents(deps: Deps): ForeignEvents {
  const { world, store, bus, meter } = deps
  const batcher = new Batcher<ForeignEvent, IngestOutcome>({
    name: 'ingest',
    world,
    ...INGEST_BATCH,
    bytesOf: ({ data }) => data.length + 200,
    userOf: ({ jobId }) => jobId,
    onBatch: meter.batch,
    run: (items) => store.write(ingestEvents(items)),
  })

  async function ingestAll(events: readonly ForeignEvent[]): Promise<IngestOutcome[]> {
    const settled = await batcher.addAll(events, (event) => event)
    return settled.map((one) => {
      if (one.status === 'fulfilled') return one.value
      if (one.reason instanceof BadValue) return REFUSED
      throw one.reason
    })
  }

  return {
    async ingest(events) {
      const problems = events.map(problemOf)
      const fit = events.flatMap((event, i) => (event === null || problems[i] !== null ? [] : event))
      const ingested = (await ingestAll(fit)).values()
      return problems.map((problem) => {
        const outcome = problem ?? ingested.next().value ?? REFUSED
        meter.ingested(outcome.kind, 1)
        if (outcome.kind === 'unknown' || outcome.kind === 'refused') return null
        const { event, last } = outcome
        if (outcome.kind === 'stored') bus.wake([`job:${event.jobId}`], { cursor: event.n, events: [event] })
        return { event, last }
      })
    },
  }
}

/** The same rules as for the events of workers. */
function problemOf(event: ForeignEvent | null): IngestOutcome | null {
  if (event === null) return REFUSED
  const { jobId, data } = event
  if (!isUuid(jobId)) return { kind: 'unknown' }
  return Buffer.byteLength(data) > DATA_BYTES_MAX || findJsonProblem(data, 'data') !== null ? REFUSED : null
}
