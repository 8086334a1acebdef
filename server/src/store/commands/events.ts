import type { RunState } from '../../core/run-state.ts'
import { type Command, command } from '../port.ts'
import { insertEvent, lockPublisher, raiseEventNumber, readEventEnd, readEvents } from '../sql/events.ts'
import { integer, one, query, type Row, text, type Work } from '../statement.ts'

export interface PublishItem {
  runId: string
  workerId: string
  leaseId: string
  events: readonly {
    stage: string
    /** The seq to store, for the run's attempt. */
    seqOf(attempt: number): number
    data: string
  }[]
}

export type PublishOutcome =
  /** For each event whether it is new. */
  { kind: 'stored'; jobId: string; accepted: boolean[] } | { kind: 'refused'; reason: 'LEASE_LOST' }

/** (job, stage, seq) is stored once; its cursor is raised under the run's row lock, so that readers never skip one. */
export function publishEvents(item: PublishItem): Command<PublishOutcome> {
  return command('publish', function* work(): Work<PublishOutcome> {
    const run = yield* one(lockPublisher, item.runId, item.workerId, item.leaseId)
    if (run === undefined) return { kind: 'refused', reason: 'LEASE_LOST' }
    const [jobId, domain, attempt] = [text(run, 'job_id'), text(run, 'kind'), integer(run, 'attempt')]
    const before = integer(run, 'last_event_n')
    let n = before
    const accepted: boolean[] = []
    for (const { stage, seqOf, data } of item.events) {
      const stored = yield* one(insertEvent, jobId, n + 1, stage, seqOf(attempt), domain, data)
      accepted.push(stored !== undefined)
      if (stored !== undefined) n++
    }
    if (n > before) yield* query(raiseEventNumber, item.runId, n)
    return { kind: 'stored', jobId, accepted }
  })
}

export interface EventRows {
  userId: string
  state: RunState
  events: Row[]
  lastN: number
}

export function findEvents(jobId: string, after: number, max: number): Command<EventRows | null> {
  return command('find_events', function* work(): Work<EventRows | null> {
    // The end is read first: an event that comes in between is then one more, never one less than promised.
    const end = yield* one(readEventEnd, jobId)
    if (end === undefined) return null
    const events = yield* query(readEvents, jobId, after, max)
    const [userId, state] = [text(end, 'user_id'), text(end, 'state') as RunState]
    return { userId, state, events, lastN: integer(end, 'last_event_n') }
  })
}
