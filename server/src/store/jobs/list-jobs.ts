import { JOB_STATES, type JobFilterShape } from '@ichido/sdk/protocol'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { JOB_IN_ROOMS } from '../runs/rooms.sql.ts'
import { now, select, type Work } from '../statement.ts'
import {
  countsOf,
  endsOf,
  forEngines,
  idsOf,
  isScanned,
  type JobFilter,
  type Span,
  statesOf,
} from './job-filter.sql.ts'
import { LISTED_COLUMNS, LISTED_ROW, type ListedJob } from './read-jobs.ts'

export { EVERY_JOB, type JobFilter, statesOf } from './job-filter.sql.ts'

/** The jobs that one call looks at, if no index serves the filter. */
const SCAN_MAX = 2_000

export interface ListOptions {
  order?: Span['order']
  /** Jobs to skip after the cursor. */
  offset?: number
  scanMax?: number
}

/**
 * In the order of their ids, the newest first by default. Job ids are UUIDv7, so they rise with time. A page begins in an index where the last page ended, so it costs the
 * same with any number of jobs. The table whose index fits the filter best leads. It gives the ids of the page, and then each
 * room is looked up by these ids. One statement does it all: a job that changes rooms is neither missed nor listed twice.
 * If no index serves the filter, a page looks at `scanMax` jobs, and may have fewer than `limit` although others follow.
 */
export function listJobs(
  filter: JobFilter,
  limit: number,
  after: string | null,
  { order = 'newest', offset = 0, scanMax = SCAN_MAX }: ListOptions = {},
): Command<Listed<ListedJob>> {
  return command('list_jobs', function* work(): Work<Listed<ListedJob>> {
    const span = yield* spanOf(filter, order, after, scanMax)
    const direction = order === 'newest' ? 'DESC' : 'ASC'
    const ids = idsOf(filter, offset + limit + 1, span)
    if (ids === null) return { rows: [], next: null }
    const page = `SELECT job_id FROM (${ids.sql}) AS ids ORDER BY job_id ${direction} LIMIT ${limit + 1} OFFSET ${offset}`
    const text = `SELECT ${LISTED_COLUMNS} FROM (${page}) AS p CROSS JOIN ${JOB_IN_ROOMS} WHERE j.id = p.job_id ORDER BY j.id ${direction}`
    const found = yield* select(LISTED_ROW, forEngines(text), ids.params)
    const { rows, next } = pageOf(found, limit, ({ job_id }) => job_id)
    return { rows, next: next ?? span.until }
  })
}

/** A scan ends at a job that is found first: jobs that change rooms meanwhile are still looked at. */
function* spanOf(filter: JobFilter, order: Span['order'], after: string | null, scanMax: number): Work<Span> {
  const span: Span = { order, after, until: null, nowMs: 0 }
  if (!isScanned(filter)) return span
  return yield* scanFrom(filter, { ...span, nowMs: yield* now() }, scanMax)
}

const END_ROW = { state: 'text', job_id: 'text' } as const

/** Ends a span after `max` jobs of one state, so that all states are looked at as far as that job. */
export function* scanFrom(filter: JobFilter, span: Span, max: number): Work<Span> {
  const ends = endsOf(filter, max, span)
  const rows = ends === null ? [] : yield* select(END_ROW, ends.sql, ends.params)
  const sorted = rows.map(({ job_id }) => job_id).sort()
  return { ...span, until: (span.order === 'newest' ? sorted.at(-1) : sorted[0]) ?? null }
}

/** The number of jobs, counted up to `max`: it never reads a million jobs. */
export function countListed(filter: JobFilter, max: number): Command<number> {
  return command('count_listed', function* work(): Work<number> {
    const ids = idsOf(filter, max, yield* spanOf(filter, 'newest', null, SCAN_MAX))
    if (ids === null) return 0
    const text = `SELECT count(*) AS count FROM (${ids.sql} LIMIT ${max}) AS listed`
    const [row] = yield* select({ count: 'integer' }, forEngines(text), ids.params)
    return row?.count ?? 0
  })
}

export interface StateCount {
  state: string
  count: number
  /** There may be more. */
  capped: boolean
}

/** By state. In each state it looks at up to `max` jobs that an index gives. */
export function countStates(filter: JobFilter, max: number): Command<StateCount[]> {
  return command('count_states', () => statesCounted(filter, max))
}

export function* statesCounted(given: JobFilter, max: number): Work<StateCount[]> {
  const states = statesOf(given) ?? JOB_STATES
  if (states.length === 0) return []
  const filter = { ...given, states }
  const span: Span = { order: 'newest', after: null, until: null, nowMs: yield* now() }
  const ends = endsOf(filter, max, span)
  if (ends === null) return []
  const until = new Map((yield* select(END_ROW, ends.sql, ends.params)).map((row) => [row.state, row.job_id]))
  const counts = countsOf(filter, max, (state) => ({ ...span, until: until.get(state) ?? null }))
  if (counts === null) return []
  const rows = yield* select({ state: 'text', count: 'integer' }, forEngines(counts.sql), counts.params)
  return rows.map(({ state, count }) => ({ state, count, capped: until.has(state) }))
}

/** The filter as callers write it, for answers and the audit. */
export function renderJobFilter(filter: JobFilter): JobFilterShape {
  const {
    states,
    label,
    userId,
    queue,
    kind,
    key,
    shortId,
    errorCode,
    text,
    waitingLongerThanMs,
    createdFromMs,
    createdToMs,
  } = filter
  const instant = (ms: number) => new Date(ms).toISOString()
  return {
    ...(states.length === 0 ? {} : { state: states.join() as NonNullable<JobFilterShape['state']> }),
    ...(queue === null ? {} : { queue }),
    ...(kind === null ? {} : { kind }),
    ...(userId === null ? {} : { user_id: userId }),
    ...(label === null ? {} : { label: `${label.name}:${label.value}` }),
    ...(key === null ? {} : { key }),
    ...(shortId === null ? {} : { short_id: shortId }),
    ...(errorCode === null ? {} : { error_code: errorCode }),
    ...(text === null ? {} : { text }),
    ...(waitingLongerThanMs === null ? {} : { waiting_longer_than_seconds: waitingLongerThanMs / 1000 }),
    ...(createdFromMs === null ? {} : { created_after: instant(createdFromMs) }),
    ...(createdToMs === null ? {} : { created_before: instant(createdToMs) }),
  }
}
