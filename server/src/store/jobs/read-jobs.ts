import { isMapOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { parsePolicy } from '../../core/run/job.ts'
import { parseRunError, RUN_STATES } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { HELD_STATE, JOB_IN_ROOMS, latest, READY_STATE, STATE, sinceHeld } from '../runs/rooms.sql.ts'
import { each, one, query, type RowOf, statement, type Values, type Work } from '../statement.ts'
import { readKeysOfJobs } from '../submission/keys.ts'
import { readCounts, type StoredCounts } from '../system/promise-counters.ts'
import { EXPIRED } from '../system/retention.sql.ts'
import { type Callback, readCallbackOf } from '../webhooks/deliveries.ts'

const state = { passOn: RUN_STATES } as const
const error = { json: parseRunError } as const

// A payload may have 1 MiB, and a batch 1,000 jobs: only the statement that shows one job reads its payload.
export const LISTED_COLUMNS = `j.id AS job_id, j.kind, j.queue, j.user_id, j.priority, j.labels, j.replaces_job_id, j.scheduled_for,
  (SELECT d.name FROM ichido.job_definitions d WHERE d.id = j.definition_id) AS definition, j.estimated_cost_micros, j.created_at,
  ${STATE} AS state, ${latest('run_at')} AS run_at, ${latest('attempt')} AS attempt, ${latest('retry_count')} AS retry_count,
  ${sinceHeld('started_at')} AS started_at, e.finished_at, ${sinceHeld('cancel_requested_at')} AS cancel_requested_at,
  ${sinceHeld('error')} AS error`
export const LISTED_ROW = {
  job_id: 'text',
  kind: 'text',
  queue: 'text',
  user_id: 'text',
  priority: 'integer',
  labels: { json: stored('labels', orNull(isMapOf(isText))) },
  replaces_job_id: 'text?',
  scheduled_for: 'integer?',
  definition: 'text?',
  estimated_cost_micros: 'integer',
  created_at: 'integer',
  state,
  run_at: 'integer',
  attempt: 'integer',
  retry_count: 'integer',
  started_at: 'integer?',
  finished_at: 'integer?',
  cancel_requested_at: 'integer?',
  error,
} as const

/** A job in a list. */
export type ListedJob = Values<typeof LISTED_ROW>

/** For commands that need to know some facts of many jobs. */
const TERMS = `j.id AS job_id, j.user_id, j.policy, j.estimated_cost_micros, j.created_at, ${latest('run_at')} AS run_at`
const TERMS_ROW = {
  job_id: 'text',
  user_id: 'text',
  policy: { json: parsePolicy },
  estimated_cost_micros: 'integer',
  created_at: 'integer',
  run_at: 'integer',
} as const

const JOBS = `FROM ${JOB_IN_ROOMS}`

export const readJobs = statement('read_jobs', {
  params: { job_id: 'text' },
  row: TERMS_ROW,
  postgres: `SELECT ${TERMS} ${JOBS} WHERE j.id = ANY($job_id::uuid[])`,
  sqlite: `SELECT ${TERMS} ${JOBS} WHERE j.id = $job_id`,
})

/** The same without jobs whose results have expired. */
export const readKeptJobs = statement('read_kept_jobs', {
  params: { job_id: 'text' },
  row: TERMS_ROW,
  postgres: `SELECT ${TERMS} ${JOBS} WHERE j.id = ANY($job_id::uuid[]) AND NOT ${EXPIRED}`,
  sqlite: `SELECT ${TERMS} ${JOBS} WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** Everything that is shown of a job that is kept. */
export const readKeptJob = statement('read_kept_job', {
  params: { job_id: 'text' },
  row: { ...LISTED_ROW, payload: 'text', policy: { json: parsePolicy }, traceparent: 'text?', trigger_id: 'text?' },
  sql: `SELECT ${LISTED_COLUMNS}, j.payload, j.policy, j.traceparent,
      (SELECT o.trigger_id FROM ichido.trigger_outcomes o WHERE o.job_id = j.id) AS trigger_id
    ${JOBS} WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

const IN_ALL =
  'r.run_id, r.run_no, r.version, r.attempt, r.retry_count, r.run_at, r.created_at, r.worker_id, r.assigned_at'
const NONE = (column: string) => `CAST(NULL AS bigint) AS ${column}`

const readRuns = statement('read_runs', {
  params: { job_id: 'text' },
  row: {
    run_id: 'text',
    run_no: 'integer',
    state,
    version: 'integer',
    attempt: 'integer',
    retry_count: 'integer',
    run_at: 'integer',
    created_at: 'integer',
    worker_id: 'text?',
    assigned_at: 'integer?',
    lease_expires_at: 'integer?',
    started_at: 'integer?',
    finished_at: 'integer?',
    deadline_at: 'integer?',
    cancel_requested_at: 'integer?',
    error,
  },
  sql: `SELECT ${IN_ALL}, ${READY_STATE('r')} AS state, ${NONE('lease_expires_at')}, ${NONE('started_at')}, ${NONE('finished_at')},
      ${NONE('deadline_at')}, ${NONE('cancel_requested_at')}, CAST(NULL AS text) AS error FROM ichido.ready r WHERE r.job_id = $job_id
    UNION ALL SELECT ${IN_ALL}, ${HELD_STATE('r')}, r.lease_expires_at, r.started_at, NULL, r.deadline_at, r.cancel_requested_at, r.error
      FROM ichido.held r WHERE r.job_id = $job_id
    UNION ALL SELECT ${IN_ALL}, r.state, r.lease_expires_at, r.started_at, r.finished_at, NULL, r.cancel_requested_at, r.error
      FROM ichido.ended r WHERE r.job_id = $job_id
    ORDER BY run_no`,
})

const readResult = statement('read_result', {
  params: { job_id: 'text' },
  row: {
    state,
    error,
    attempt: 'integer',
    user_id: 'text',
    run_id: 'text?',
    result: 'text?',
    summary_text: 'text?',
    freqs_csv: 'text?',
    meta: 'text?',
    cost_micros: 'integer?',
    finished_at: 'integer?',
  },
  sql: `SELECT ${STATE} AS state, ${sinceHeld('error')} AS error, ${latest('attempt')} AS attempt, j.user_id, s.run_id, s.result,
      s.summary_text, s.freqs_csv, s.meta, s.cost_micros, e.finished_at
    FROM ${JOB_IN_ROOMS} LEFT JOIN ichido.results s ON s.run_id = e.run_id
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** The cost of each job whose worker has reported it. */
const readReportedCosts = statement('read_reported_costs', {
  params: { job_id: 'text' },
  row: { job_id: 'text', cost_micros: 'integer' },
  postgres: `SELECT r.job_id, s.cost_micros FROM ichido.ended r JOIN ichido.results s ON s.run_id = r.run_id
    WHERE r.job_id = ANY($job_id::uuid[]) AND r.latest AND s.cost_micros IS NOT NULL`,
  sqlite: `SELECT r.job_id, s.cost_micros FROM ichido.ended r JOIN ichido.results s ON s.run_id = r.run_id
    WHERE r.job_id = $job_id AND r.latest AND s.cost_micros IS NOT NULL`,
})

const countByState = statement('count_by_state', {
  params: {},
  row: { state: 'text', count: 'integer' },
  sql: `SELECT ${READY_STATE('r')} AS state, count(*) AS count FROM ichido.ready r GROUP BY 1
    UNION ALL SELECT ${HELD_STATE('r')}, count(*) FROM ichido.held r GROUP BY 1
    UNION ALL SELECT state, count(*) FROM ichido.ended WHERE latest GROUP BY state`,
})

type ShownJob = RowOf<typeof readKeptJob>
export type ShownRun = RowOf<typeof readRuns>
export type JobResult = RowOf<typeof readResult>
type JobTerms = Values<typeof TERMS_ROW>

export interface JobWithRuns {
  job: ShownJob
  runs: ShownRun[]
  key: string | null
  callback: Callback | null
  /** The counters that nodes have stored for the job. */
  once: StoredCounts[]
}

export function findJob(jobId: string): Command<JobWithRuns | null> {
  return command('find_job', function* work(): Work<JobWithRuns | null> {
    const job = yield* one(readKeptJob, { job_id: jobId })
    if (job === undefined) return null
    const runs = yield* query(readRuns, { job_id: jobId })
    // The job was removed in between.
    if (runs.length === 0) return null
    const [key] = yield* each(readKeysOfJobs, [{ job_id: jobId }])
    const callback = yield* readCallbackOf(jobId)
    return { job, runs, key: key?.idempotency_key ?? null, callback, once: yield* readCounts(jobId) }
  })
}

/** In no order. Unknown ids are left out. */
export function findJobs(jobIds: readonly string[]): Command<JobTerms[]> {
  return command('find_jobs', () => each(readKeptJobs, jobIds.map(named)))
}

export function findResult(jobId: string): Command<JobResult | undefined> {
  return command('find_result', () => one(readResult, { job_id: jobId }))
}

/** By job, the cost in millionths that its worker has reported. Jobs without a report are left out. */
export function findReportedCosts(jobIds: readonly string[]): Command<Map<string, number>> {
  return command('find_reported_costs', function* work(): Work<Map<string, number>> {
    const rows = yield* each(readReportedCosts, jobIds.map(named))
    return new Map(rows.map(({ job_id, cost_micros }) => [job_id, cost_micros]))
  })
}

export function countJobs(): Command<Map<string, number>> {
  return command('count_jobs', function* work(): Work<Map<string, number>> {
    return new Map((yield* query(countByState, {})).map(({ state, count }) => [state, count]))
  })
}

const named = (job_id: string) => ({ job_id })
