import { type EventRules, eventRules } from '../../core/events/seq.ts'
import type { JobPolicy } from '../../core/run/job.ts'
import type { RunState } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { integer, one, query, type Row, text, type Work } from '../statement.ts'
import * as sql from './events.sql.ts'

export interface EventRows {
  userId: string
  state: RunState
  events: Row[]
  lastN: number
}

/** @param bytesMax the events before which so many bytes come are left; without it, none is. */
export function findEvents(jobId: string, after: number, max: number, bytesMax?: number): Command<EventRows | null> {
  return command('find_events', function* work(): Work<EventRows | null> {
    // The end is read first: an event that comes in between is then one more, never one less than promised.
    const end = yield* one(sql.readEventEnd, jobId)
    if (end === undefined) return null
    const events =
      bytesMax === undefined
        ? yield* query(sql.readEvents, jobId, after, max)
        : yield* query(sql.readEventsWithin, jobId, after, max, bytesMax)
    const [userId, state] = [text(end, 'user_id'), text(end, 'state') as RunState]
    return { userId, state, events, lastN: integer(end, 'last_event_n') }
  })
}

export interface LatestState {
  userId: string
  rules: EventRules
  state: RunState
  attempt: number
  /** The last of all, if any is kept. */
  last: Row | undefined
  /** The last one of each stage that workers publish in. */
  stages: Row[]
}

export function findLatestState(jobId: string): Command<LatestState | null> {
  return command('find_latest_state', function* work(): Work<LatestState | null> {
    const end = yield* one(sql.readEventEnd, jobId)
    if (end === undefined) return null
    const stages = yield* query(sql.readLastOfStages, jobId)
    const last = yield* one(sql.readEvents, jobId, integer(end, 'last_event_n') - 1, 1)
    return {
      userId: text(end, 'user_id'),
      rules: eventRules(text(end, 'kind'), JSON.parse(text(end, 'policy')) as JobPolicy),
      state: text(end, 'state') as RunState,
      attempt: integer(end, 'attempt'),
      last,
      stages,
    }
  })
}
