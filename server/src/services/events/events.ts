import { type EventOfAllShape, type EventShape, IchidoError, type JobStateShape } from '@ichido/sdk/protocol'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import { BadValue } from '../../core/node/store-errors.ts'
import { isFinal } from '../../core/run/run-state.ts'
import { type EventFilter, findAllEvents, type PlacedEvent } from '../../store/events/all-events.ts'
import { type EventRow, findEvents, findLatestState } from '../../store/events/events.ts'
import { findCursorOfSeq } from '../../store/events/feeds.ts'
import { type PublishItem, type PublishOutcome, publishBatch } from '../../store/events/publish.ts'
import { type EventPlace, findLastPlace } from '../../store/events/walk-events.ts'
import { runIdOf } from '../../store/runs/run-facts.ts'
import { Batcher } from '../batching/batcher.ts'
import type { Deps } from '../deps.ts'
import { iso } from '../iso.ts'
import { notFound, requireId } from '../not-found.ts'
import { waitFor } from '../wait.ts'
import { UNKNOWN_CURSOR } from './job-feed.ts'

export type { EventFilter } from '../../store/events/all-events.ts'
export { type EventPlace, FIRST_EVENT } from '../../store/events/walk-events.ts'

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
  /** False when the event was stored before. */
  publish(workerId: string, leaseId: string, event: NewEvent): Promise<boolean>
  /** The same for several events of one run: all of them or, when one cannot be published, none. */
  publishAll(workerId: string, leaseId: string, events: readonly NewEvent[]): Promise<boolean[]>
  /** The events after a cursor, as many as an answer may have; waits up to `waitMs` when there is none yet. */
  read(
    caller: Caller,
    jobId: string,
    after: number,
    waitMs: number,
    signal?: AbortSignal,
  ): Promise<{ events: EventShape[]; ended: boolean }>
  /** Where a reader goes on that has seen this seq. Seq 0 is also what readers send that have seen nothing. */
  cursorOfSeq(jobId: string, lastSeq: number): Promise<number>
  /** How the job stands now: the last event of all, and of each stage. */
  state(caller: Caller, jobId: string): Promise<JobStateShape>
  /** The events of all jobs after a place, for operators; null when the place is of another store. */
  list(filter: EventFilter, after: EventPlace, limit: number): Promise<EventList | null>
  /** The place after all events that can be listed by now. */
  lastPlace(): Promise<EventPlace>
}

const PAGE_MAX = 1_000
/** 1,000 events may have 64 MiB. */
const PAGE_BYTES_MAX = 4 * 1024 * 1024
export const DATA_BYTES_MAX = 64 * 1024
/** Few are often of one run, whose lock they would have to wait for anyway; and together they are one write to each reader. */
const BATCH = { itemsMax: 1_000, bytesMax: 8 * 1024 * 1024, inFlightMax: 2, besideMin: 16 }

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
    const runId = runIdOf(leaseId)
    if (runId === null) throw notFound('lease', leaseId)
    const outcome = await batcher.add({ runId, workerId, leaseId, events: events.map(toItem) })
    if (outcome.kind === 'refused') {
      meter.fenced('publish', outcome.reason)
      evidence.refused(runId, outcome.reason)
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
        // A page that is not full has all that is kept; retention may have removed the last ones.
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
        // An event of a stage may have come in since the last one of all was read.
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
