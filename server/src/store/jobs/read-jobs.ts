import { type Command, command } from '../port.ts'
import { each, integer, one, query, type Row, text, type Work } from '../statement.ts'
import { readKeysOfJobs } from '../submission/keys.sql.ts'
import { readCounts, type StoredCounts } from '../system/promise-counters.ts'
import { countByState, readKeptJob, readKeptJobs, readReportedCosts, readResult, readRuns } from './jobs.sql.ts'

export interface JobRows {
  job: Row
  runs: Row[]
  key: string | null
  /** What nodes have counted of it. */
  once: StoredCounts[]
}

export function findJob(jobId: string): Command<JobRows | null> {
  return command('find_job', function* work(): Work<JobRows | null> {
    const job = yield* one(readKeptJob, jobId)
    if (job === undefined) return null
    const runs = yield* query(readRuns, jobId)
    // It was removed in between.
    if (runs.length === 0) return null
    const [key] = yield* each(readKeysOfJobs, [{ job_id: jobId }])
    return { job, runs, key: key?.idempotency_key ?? null, once: yield* readCounts(jobId) }
  })
}

/** The terms of jobs, in no order; unknown ids are left out. */
export function findJobs(jobIds: readonly string[]): Command<Row[]> {
  return command('find_jobs', () =>
    each(
      readKeptJobs,
      jobIds.map((id) => [id]),
    ),
  )
}

export function findResult(jobId: string): Command<Row | undefined> {
  return command('find_result', () => one(readResult, jobId))
}

/** What workers reported as the cost of jobs, in millionths; of those without a report it says nothing. */
export function findReportedCosts(jobIds: readonly string[]): Command<Map<string, number>> {
  return command('find_reported_costs', function* work(): Work<Map<string, number>> {
    const rows = yield* each(
      readReportedCosts,
      jobIds.map((id) => [id]),
    )
    return new Map(rows.map((row) => [text(row, 'job_id'), integer(row, 'cost_micros')]))
  })
}

export function countJobs(): Command<Map<string, number>> {
  return command('count_jobs', function* work(): Work<Map<string, number>> {
    return new Map((yield* query(countByState)).map((row) => [text(row, 'state'), integer(row, 'count')]))
  })
}
