import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

// A payload may have 1 MiB, and a batch 1,000 jobs: it is read where it is shown, and nowhere else.

/** What is told of a job among others. */
export const LISTED_COLUMNS = `j.id AS job_id, j.kind, j.queue, j.user_id, j.priority, j.labels, j.replaces_job_id, j.scheduled_for,
  (SELECT d.name FROM ichido.job_definitions d WHERE d.id = j.definition_id) AS definition, j.estimated_cost_micros, j.created_at,
  r.state, r.run_at, r.attempt, r.retry_count, r.started_at, r.finished_at, r.cancel_requested_at, r.error`

/** What commands go by. */
const TERMS = 'j.id AS job_id, j.user_id, j.policy, j.estimated_cost_micros, j.created_at, r.run_at'

const JOBS = 'FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest'

/** Takes job ids; answers with each job's terms. */
export const readJobs = statement('read_jobs', {
  postgres: `SELECT ${TERMS} ${JOBS} WHERE j.id = ANY($1::uuid[])`,
  sqlite: `SELECT ${TERMS} ${JOBS} WHERE j.id = $1`,
})

/** The same for whoever looks at jobs: without those whose results have outlived their queue's time. */
export const readKeptJobs = statement('read_kept_jobs', {
  postgres: `SELECT ${TERMS} ${JOBS} WHERE j.id = ANY($1::uuid[]) AND NOT ${EXPIRED}`,
  sqlite: `SELECT ${TERMS} ${JOBS} WHERE j.id = $1 AND NOT ${EXPIRED}`,
})

/** Takes one of those that are kept: all there is to show of it. */
export const readKeptJob = statement(
  'read_kept_job',
  `SELECT ${LISTED_COLUMNS}, j.payload, j.policy, j.traceparent,
      (SELECT o.trigger_id FROM ichido.trigger_outcomes o WHERE o.job_id = j.id) AS trigger_id
    ${JOBS} WHERE j.id = $1 AND NOT ${EXPIRED}`,
)

export const readRuns = statement(
  'read_runs',
  `SELECT id, run_no, state, version, attempt, retry_count, run_at, created_at, assigned_worker_id, assigned_at,
      lease_expires_at, started_at, finished_at, continuation_state, continuation_check_deadline_at, cancel_requested_at,
      error
    FROM ichido.runs WHERE job_id = $1 ORDER BY run_no`,
)

export const readResult = statement(
  'read_result',
  `SELECT r.state, r.error, r.attempt, j.user_id, s.run_id, s.result, s.summary_text, s.freqs_csv, s.meta, s.cost_micros,
      r.finished_at
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    LEFT JOIN ichido.results s ON s.run_id = r.id
    WHERE j.id = $1 AND NOT ${EXPIRED}`,
)

/** Takes job ids; answers with the cost that the worker reported for each, where it did. */
export const readReportedCosts = statement('read_reported_costs', {
  postgres: `SELECT r.job_id, s.cost_micros FROM ichido.runs r JOIN ichido.results s ON s.run_id = r.id
    WHERE r.job_id = ANY($1::uuid[]) AND r.latest AND s.cost_micros IS NOT NULL`,
  sqlite: `SELECT r.job_id, s.cost_micros FROM ichido.runs r JOIN ichido.results s ON s.run_id = r.id
    WHERE r.job_id = $1 AND r.latest AND s.cost_micros IS NOT NULL`,
})

/** What a metric or a page tells at a glance. */
export const countByState = statement(
  'count_by_state',
  `SELECT state, count(*) AS count FROM ichido.runs WHERE latest GROUP BY state`,
)
