import { storableText } from '../../core/json/text.ts'
import { DEFAULT_BACKOFF, hasRetriesLeft, type JobPolicy, retryDelayMs } from '../../core/run/job.ts'
import type { RunError } from '../../core/run/run-state.ts'
import { insertDeadLetters } from '../dead-letters/dead-letters.ts'
import { readJobs } from '../jobs/read-jobs.ts'
import { each, type ParamsOf, type Work } from '../statement.ts'
import { insertNextRuns } from './runs.sql.ts'

/** The row of a run that has ended. */
export interface EndedRow {
  readonly job_id: string
  readonly run_id: string
  readonly run_no: number
  readonly queue: string
  readonly kind: string
  readonly user_id: string
  readonly retry_count: number
}

/** A run that ended in this transaction without success. */
export interface Failure {
  row: EndedRow
  error: RunError
  retryable: boolean
  /** The worker gave the run back: the next run is due now and costs no retry. */
  released?: boolean
  /** Made before the transaction, for the next run. */
  nextRunId: string
  /** In [0, 1). It spreads retries. */
  random: number
}

export interface Followed {
  /** `due`: the queue has work now. */
  next: { runId: string; runAtMs: number; queue: string; due: boolean } | null
  dead: boolean
  retryCount: number
}

/** By job, the next run after the run that ended, or a dead letter when no retry is left. */
export function* followFailures(failures: readonly Failure[]): Work<Map<string, Followed>> {
  const policies = yield* readPolicies(failures.map(({ row }) => row.job_id))
  const followed = new Map<string, Followed>()
  const retries = new Map<string, { retryCount: number; due: boolean }>()
  const next: ParamsOf<typeof insertNextRuns>[] = []
  const dead: ParamsOf<typeof insertDeadLetters>[] = []
  for (const failure of failures) {
    const { row, nextRunId } = failure
    const { job_id, run_no } = row
    const { retryCount, delayMs } = whatFollows(failure, policies.get(row.job_id) ?? {})
    if (delayMs === null) {
      dead.push(deadLetter(row, failure.error, retryCount))
      followed.set(job_id, { next: null, dead: true, retryCount })
    } else {
      const run = { job_id, run_no, next_id: nextRunId, delay_ms: delayMs, retry_count: retryCount }
      next.push({ ...run, tag: null, created_at: null })
      retries.set(job_id, { retryCount, due: delayMs === 0 })
    }
  }
  for (const row of yield* each(insertNextRuns, next)) {
    const { retryCount = 0, due = false } = retries.get(row.job_id) ?? {}
    const run = { runId: row.run_id, runAtMs: row.run_at, queue: row.queue, due }
    followed.set(row.job_id, { next: run, dead: false, retryCount })
  }
  yield* each(insertDeadLetters, dead)
  return followed
}

/** Without a delay, no retry is left. */
function whatFollows(
  { row, retryable, released, random }: Failure,
  policy: JobPolicy,
): { retryCount: number; delayMs: number | null } {
  const before = row.retry_count
  if (released) return { retryCount: before, delayMs: 0 }
  const retryCount = before + 1
  if (!retryable || !hasRetriesLeft(policy, retryCount)) return { retryCount, delayMs: null }
  return { retryCount, delayMs: retryDelayMs(policy.backoff ?? DEFAULT_BACKOFF, before, random) }
}

function* readPolicies(jobIds: readonly string[]): Work<Map<string, JobPolicy>> {
  const jobs = yield* each(
    readJobs,
    jobIds.map((job_id) => ({ job_id })),
  )
  return new Map(jobs.map(({ job_id, policy }) => [job_id, policy]))
}

function deadLetter(
  { job_id, run_id, queue, kind, user_id }: EndedRow,
  { code, message }: RunError,
  retry_count: number,
): ParamsOf<typeof insertDeadLetters> {
  // If the text of an error were refused, its run would stay RUNNING for ever.
  const [error_code, error_message] = [storableText(code), storableText(message)]
  return { job_id, run_id, queue, kind, user_id, error_code, error_message, retry_count }
}
