import { isMapOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { parsePolicy } from '../../core/run/job.ts'
import { parseRunError, RUN_STATES } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { each, one, query, type RowOf, statement, type Values, type Work } from '../statement.ts'
import { readKeysOfJobs } from '../submission/keys.ts'
import { readCounts, type StoredCounts } from '../system/promise-counters.ts'
import { EXPIRED } from '../system/retention.sql.ts'

const state = { passOn: RUN_STATES } as const
const error = { json: parseRunError } as const

// A payload may have 1 MiB, and a batch 1,000 jobs: only the statement that shows one job reads its payload.
export const LISTED_COLUMNS = `j.id AS job_id, j.kind, j.queue, j.user_id, j.priority, j.labels, j.replaces_job_id, j.scheduled_for,
  (SELECT d.name FROM ichido.job_definitions d WHERE d.id = j.definition_id) AS definition, j.estimated_cost_micros, j.created_at,
  r.state, r.run_at, r.attempt, r.retry_count, r.started_at, r.finished_at, r.cancel_requested_at, r.error`
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
const TERMS = 'j.id AS job_id, j.user_id, j.policy, j.estimated_cost_micros, j.created_at, r.run_at'
const TERMS_ROW = {
  job_id: 'text',
  user_id: 'text',
  policy: { json: parsePolicy },
  estimated_cost_micros: 'integer',
  created_at: 'integer',
  run_at: 'integer',
} as const

const JOBS = 'FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest'

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

const readRuns = statement('read_runs', {
  params: { job_id: 'text' },
  row: {
    id: 'text',
    run_no: 'integer',
    state,
    version: 'integer',
    attempt: 'integer',
    retry_count: 'integer',
    run_at: 'integer',
    created_at: 'integer',
    assigned_worker_id: 'text?',
    assigned_at: 'integer?',
    lease_expires_at: 'integer?',
    started_at: 'integer?',
    finished_at: 'integer?',
    continuation_state: 'text',
    continuation_check_deadline_at: 'integer?',
    cancel_requested_at: 'integer?',
    error,
  },
  sql: `SELECT id, run_no, state, version, attempt, retry_count, run_at, created_at, assigned_worker_id, assigned_at,
      lease_expires_at, started_at, finished_at, continuation_state, continuation_check_deadline_at, cancel_requested_at,
      error
    FROM ichido.runs WHERE job_id = $job_id ORDER BY run_no`,
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
  sql: `SELECT r.state, r.error, r.attempt, j.user_id, s.run_id, s.result, s.summary_text, s.freqs_csv, s.meta, s.cost_micros,
      r.finished_at
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    LEFT JOIN ichido.results s ON s.run_id = r.id
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** The cost of each job whose worker has reported it. */
const readReportedCosts = statement('read_reported_costs', {
  params: { job_id: 'text' },
  row: { job_id: 'text', cost_micros: 'integer' },
  postgres: `SELECT r.job_id, s.cost_micros FROM ichido.runs r JOIN ichido.results s ON s.run_id = r.id
    WHERE r.job_id = ANY($job_id::uuid[]) AND r.latest AND s.cost_micros IS NOT NULL`,
  sqlite: `SELECT r.job_id, s.cost_micros FROM ichido.runs r JOIN ichido.results s ON s.run_id = r.id
    WHERE r.job_id = $job_id AND r.latest AND s.cost_micros IS NOT NULL`,
})

const countByState = statement('count_by_state', {
  params: {},
  row: { state: 'text', count: 'integer' },
  sql: `SELECT state, count(*) AS count FROM ichido.runs WHERE latest GROUP BY state`,
})

type ShownJob = RowOf<typeof readKeptJob>
export type ShownRun = RowOf<typeof readRuns>
export type JobResult = RowOf<typeof readResult>
type JobTerms = Values<typeof TERMS_ROW>

export interface JobWithRuns {
  job: ShownJob
  runs: ShownRun[]
  key: string | null
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
    return { job, runs, key: key?.idempotency_key ?? null, once: yield* readCounts(jobId) }
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
