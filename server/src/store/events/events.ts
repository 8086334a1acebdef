import { type EventRules, eventRules } from '../../core/events/seq.ts'
import { parsePolicy } from '../../core/run/job.ts'
import type { RunState } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { one, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './events.sql.ts'

export type EventRow = RowOf<typeof sql.readEvents>

export interface EventRows {
  userId: string
  state: RunState
  events: EventRow[]
  lastN: number
}

/** @param bytesMax ends the page with the event that reaches this many bytes. */
export function findEvents(jobId: string, after: number, max: number, bytesMax?: number): Command<EventRows | null> {
  return command('find_events', function* work(): Work<EventRows | null> {
    // The end is read first: an event that comes in between is then one more, never one less than promised.
    const end = yield* one(sql.readEventEnd, { job_id: jobId })
    if (end === undefined) return null
    const page = { job_id: jobId, after, max }
    const events =
      bytesMax === undefined
        ? yield* query(sql.readEvents, page)
        : yield* query(sql.readEventsWithin, { ...page, bytes_max: bytesMax })
    return { userId: end.user_id, state: end.state, events, lastN: end.last_event_n }
  })
}

export interface LatestState {
  userId: string
  rules: EventRules
  state: RunState
  attempt: number
  /** The last of all, if any is kept. */
  last: EventRow | undefined
  /** The last one of each stage that workers publish in. */
  stages: EventRow[]
}

export function findLatestState(jobId: string): Command<LatestState | null> {
  return command('find_latest_state', function* work(): Work<LatestState | null> {
    const end = yield* one(sql.readEventEnd, { job_id: jobId })
    if (end === undefined) return null
    const stages = yield* query(sql.readLastOfStages, { job_id: jobId })
    const last = yield* one(sql.readEvents, { job_id: jobId, after: end.last_event_n - 1, max: 1 })
    return {
      userId: end.user_id,
      rules: eventRules(end.kind, parsePolicy(JSON.parse(end.policy))),
      state: end.state,
      attempt: end.attempt,
      last,
      stages,
    }
  })
}
