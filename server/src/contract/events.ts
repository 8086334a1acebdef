import {
  type EventOfAllShape,
  type EventShape,
  type EventsOfAllShape,
  JOB_STATES,
  type JobStateShape,
  SEQ_MAX,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { decodeCursor, encodeCursor, isUuid, listQuery, name, time, uuid } from './common.ts'

const EVENTS_MAX = 1_000

const published = {
  stage: name.refine((stage) => stage !== 'run', 'is not for workers: the server writes the stage run'),
  seq: z.int().min(0).max(SEQ_MAX),
  data: z.unknown().optional(),
}

/** An event that S4 puts into a stream. It has no cursor, unlike the events of nodes. Its other fields are ignored. */
export const foreignEvent = z.object({ job_id: z.string(), cursor: z.undefined().optional(), ...published })

export const publishRequest = z.strictObject({
  events: z.array(z.strictObject(published)).min(1).max(EVENTS_MAX),
})

export const publishResponse = z.object({
  data: z.array(z.object({ accepted: z.boolean().meta({ description: 'False: the event was already stored' }) })),
})

const eventFields = {
  cursor: z.int().meta({ description: 'A number without gaps within the job, in the order of delivery' }),
  stage: z.string(),
  seq: z.int().meta({ description: 'If each attempt counts from the start, (attempt − 1) · 1,000,000 is added' }),
  data: z.unknown(),
  timestamp: time,
}

export const event = z.object(eventFields).meta({ id: 'Event' }) satisfies z.ZodType<EventShape>

export const events = z.object({
  events: z.array(event),
  ended: z.boolean().meta({ description: 'No further event can come' }),
})

export const jobState = z
  .object({
    job_id: z.uuid(),
    domain: z.string(),
    state: z.enum(JOB_STATES),
    attempt: z.int(),
    event: event.nullable().meta({ description: 'The last event; null after retention has removed the events' }),
    stages: z.record(z.string(), event).meta({ description: 'The last event of each stage in which workers publish' }),
  })
  .meta({ id: 'JobStateNow' }) satisfies z.ZodType<JobStateShape>

export const listEventsQuery = z.strictObject({
  job_id: uuid.optional(),
  kind: name.optional(),
  queue: name.optional(),
  domain: name.optional(),
  stage: name.optional(),
  ...listQuery,
})

const eventOfAll = z
  .object({ job_id: z.uuid(), kind: z.string(), queue: z.string(), domain: z.string(), ...eventFields })
  .meta({ id: 'EventOfAll' }) satisfies z.ZodType<EventOfAllShape>

export const eventsOfAll = z.object({
  data: z.array(eventOfAll),
  next_cursor: z.string().meta({ description: 'Where the list continues, now or later' }),
  caught_up: z.boolean().meta({ description: 'There are no more events yet' }),
}) satisfies z.ZodType<EventsOfAllShape>

const LIST = 'events'
const PLACE = /^(\d{1,15}):([^:]+):(\d{1,15})$/

/** A place among the events of all jobs. */
export function encodePlace({ tx, jobId, n }: { tx: number; jobId: string; n: number }): string {
  return encodeCursor(LIST, `${tx}:${jobId}:${n}`)
}

export function decodePlace(cursor: string): { tx: number; jobId: string; n: number } | null {
  const place = decodeCursor(LIST, cursor, (text) => PLACE.test(text))
  const [, tx, jobId = '', n] = PLACE.exec(place ?? '') ?? []
  return isUuid(jobId) ? { tx: Number(tx), jobId, n: Number(n) } : null
}
