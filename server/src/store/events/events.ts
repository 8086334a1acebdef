import { type EventRules, eventRules } from '../../core/events/event.ts'
import { parsePolicy } from '../../core/run/job.ts'
import { RUN_STATES, type RunState } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { JOB_IN_ROOMS, latest, STATE } from '../runs/rooms.sql.ts'
import { each, exactlyOne, one, query, type RowOf, statement, type Work } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'
import { eventsOf } from './event-sources.sql.ts'

const EVENT_ROW = { n: 'integer', stage: 'text', seq: 'integer', data: 'text', created_at: 'integer' } as const

/**
 * The first event of a job is derived from the job: a row for it took a tenth of a submit.
 */
const readEvents = statement('read_events', {
  params: { job_id: 'text', after: 'integer', max: 'integer' },
  row: EVENT_ROW,
  ...perEngine((events) => eventsAfter(events, '$after')),
})

/** Reads only the events that begin within the first `bytes_max` bytes. */
const readEventsWithin = statement('read_events_within', {
  params: { job_id: 'text', after: 'integer', max: 'integer', bytes_max: 'integer' },
  row: EVENT_ROW,
  ...perEngine((events) =>
    eventsAfter(
      events,
      `$after AND n <= (SELECT max(n) FROM (
      SELECT n, sum(bytes) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM (SELECT n, octet_length(data) AS bytes FROM ${events} e WHERE n > $after ORDER BY n LIMIT $max) s) p
    WHERE bytes_before IS NULL OR bytes_before < $bytes_max)`,
    ),
  ),
})

/** `events` is a table expression: the events of the job `$job_id`. */
function perEngine(text: (events: string) => string): { postgres: string; sqlite: string } {
  return { postgres: text(eventsOf.postgres('$job_id')), sqlite: text(eventsOf.sqlite('$job_id')) }
}

function eventsAfter(events: string, place: string): string {
  return `SELECT CAST(1 AS bigint) AS n, 'run' AS stage, CAST(1 AS bigint) AS seq, '{"state":"PENDING"}' AS data, j.created_at
    FROM ${JOB_IN_ROOMS}
    WHERE j.id = $job_id AND CAST($after AS bigint) < 1
      AND (${latest('n')} = 1 OR EXISTS (SELECT 1 FROM ${events} v WHERE v.n = 2))
    UNION ALL
    SELECT n, stage, seq, data, created_at FROM ${events} e WHERE n > ${place}
    ORDER BY n LIMIT $max`
}

/** The policy stays text: most readers of events do not need it. */
const readEventEnd = statement('read_event_end', {
  params: { job_id: 'text' },
  row: {
    user_id: 'text',
    kind: 'text',
    policy: 'text',
    state: { oneOf: RUN_STATES },
    attempt: 'integer',
    n: 'integer',
  },
  sql: `SELECT j.user_id, j.kind, j.policy, ${STATE} AS state, ${latest('attempt')} AS attempt, ${latest('n')} AS n
    FROM ${JOB_IN_ROOMS} WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/**
 * Reads the last event, by cursor, of each stage that workers publish in. It walks from stage to stage along the index.
 */
const readLastOfStages = statement('read_last_of_stages', {
  params: { job_id: 'text' },
  row: EVENT_ROW,
  postgres: `WITH RECURSIVE s(stage) AS (
      (SELECT stage FROM ichido.events WHERE job_id = $job_id AND stage <> 'run' ORDER BY stage LIMIT 1)
      UNION ALL
      SELECT (SELECT e.stage FROM ichido.events e WHERE e.job_id = $job_id AND e.stage > s.stage AND e.stage <> 'run'
        ORDER BY e.stage LIMIT 1) FROM s WHERE s.stage IS NOT NULL)
    SELECT e.n, e.stage, e.seq, e.data, e.created_at FROM s CROSS JOIN LATERAL (
      SELECT * FROM ichido.events e WHERE e.job_id = $job_id AND e.stage = s.stage AND e.stage <> 'run'
      ORDER BY e.n DESC LIMIT 1) e ORDER BY e.n`,
  sqlite: `SELECT max(n) AS n, stage, seq, data, created_at FROM ichido.events WHERE job_id = $job_id AND stage <> 'run'
    GROUP BY stage ORDER BY n`,
})

export type EventRow = RowOf<typeof readEvents>

export interface EventRows {
  userId: string
  state: RunState
  events: EventRow[]
  lastN: number
}

/** @param bytesMax ends the page with the event that reaches this many bytes. */
export function findEvents(jobId: string, after: number, max: number, bytesMax?: number): Command<EventRows | null> {
  return command('find_events', function* work(): Work<EventRows | null> {
    // The end is read first: an event that arrives in between is then one more than promised, never one less.
    const end = yield* one(readEventEnd, { job_id: jobId })
    if (end === undefined) return null
    const page = { job_id: jobId, after, max }
    const events =
      bytesMax === undefined
        ? yield* query(readEvents, page)
        : yield* query(readEventsWithin, { ...page, bytes_max: bytesMax })
    return { userId: end.user_id, state: end.state, events, lastN: end.n }
  })
}

interface LatestState {
  userId: string
  rules: EventRules
  state: RunState
  attempt: number
  /** The last event, if any is stored. */
  last: EventRow | undefined
  /** The last event of each stage that workers publish in. */
  stages: EventRow[]
}

export function findLatestState(jobId: string): Command<LatestState | null> {
  return command('find_latest_state', function* work(): Work<LatestState | null> {
    const end = yield* one(readEventEnd, { job_id: jobId })
    if (end === undefined) return null
    const stages = yield* query(readLastOfStages, { job_id: jobId })
    const last = yield* one(readEvents, { job_id: jobId, after: end.n - 1, max: 1 })
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

const readFeedEnds = statement('read_feed_ends', {
  params: { job_id: 'text' },
  row: { job_id: 'text', state: { oneOf: RUN_STATES }, n: 'integer' },
  postgres: `SELECT j.id AS job_id, ${STATE} AS state, ${latest('n')} AS n FROM ${JOB_IN_ROOMS}
    WHERE j.id = ANY($job_id::uuid[]) AND NOT ${EXPIRED}`,
  sqlite: `SELECT j.id AS job_id, ${STATE} AS state, ${latest('n')} AS n FROM ${JOB_IN_ROOMS}
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/**
 * If several stages have the seq, finds the first: the reader then gets events twice rather than not at all. The seq of
 * a lifecycle event is its cursor, and counts if no worker has published the seq. The first event is derived from the
 * job.
 */
const readCursorOfSeq = statement('read_cursor_of_seq', {
  params: { job_id: 'text', seq: 'integer' },
  row: { n: 'integer?' },
  ...perEngine(
    (events) => `SELECT coalesce(
      (SELECT min(n) FROM ichido.events WHERE job_id = $job_id AND seq = $seq AND stage <> 'run'),
      (SELECT n FROM ${events} e WHERE n = $seq AND stage = 'run'),
      CASE WHEN CAST($seq AS bigint) = 1 THEN CAST(1 AS bigint) END) AS n`,
  ),
})

interface FeedEnd {
  state: RunState
  lastN: number
}

/** Reads the ends of many jobs at once. Jobs that are gone are left out. */
export function findFeedEnds(jobIds: readonly string[]): Command<Map<string, FeedEnd>> {
  return command('find_feed_ends', function* work(): Work<Map<string, FeedEnd>> {
    const rows = yield* each(
      readFeedEnds,
      jobIds.map((job_id) => ({ job_id })),
    )
    return new Map(rows.map((row) => [row.job_id, { state: row.state, lastN: row.n }]))
  })
}

/** Returns null if no event of the job has this seq. */
export function findCursorOfSeq(jobId: string, seq: number): Command<number | null> {
  return command('find_cursor_of_seq', function* work(): Work<number | null> {
    return (yield* exactlyOne(readCursorOfSeq, { job_id: jobId, seq })).n
  })
}
