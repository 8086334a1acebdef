import { DEFAULT_BACKOFF, retryDelayMs } from '../../core/backoff.ts'
import { hasRetriesLeft, type JobPolicy } from '../../core/job.ts'
import { readJobs } from '../sql/jobs.ts'
import { insertDeadLetters, insertNextRuns, supersedeRuns } from '../sql/runs.ts'
import { each, integer, type Row, type SqlValue, text, type Work } from '../statement.ts'
import { recordMoves } from './lifecycle.ts'

export interface RunError {
  code: string
  message: string
  traceback?: string
}

/** A run that ended in this transaction without success. */
export interface Failure {
  /** Its row, as it is now. */
  row: Row
  error: RunError
  retryable: boolean
  /** Made beforehand, for the run that follows. */
  nextRunId: string
  /** In [0, 1): spreads retries. */
  random: number
}

export interface Followed {
  next: { runId: string; runAtMs: number } | null
  dead: boolean
}

/** After a failure comes the next run of the job or, when nothing is left to try, a dead letter. By ended run. */
export function* followFailures(failures: readonly Failure[]): Work<Map<string, Followed>> {
  const policies = yield* readPolicies(failures.map(({ row }) => text(row, 'job_id')))
  const followed = new Map<string, Followed>()
  const endedBy = new Map<string, string>()
  const next: SqlValue[][] = []
  const dead: SqlValue[][] = []
  for (const { row, error, retryable, nextRunId, random } of failures) {
    const runId = text(row, 'id')
    const policy = policies.get(text(row, 'job_id')) ?? {}
    const retryCount = integer(row, 'retry_count') + 1
    if (retryable && hasRetriesLeft(policy, retryCount)) {
      const delayMs = retryDelayMs(policy.backoff ?? DEFAULT_BACKOFF, retryCount - 1, random)
      next.push([runId, nextRunId, delayMs, retryCount])
      endedBy.set(nextRunId, runId)
    } else {
      dead.push(deadLetter(row, error, retryCount))
      followed.set(runId, { next: null, dead: true })
    }
  }
  yield* each(
    supersedeRuns,
    next.map(([runId = null]) => [runId]),
  )
  const inserted = yield* each(insertNextRuns, next)
  yield* recordMoves(inserted)
  for (const row of inserted) {
    const runId = text(row, 'run_id')
    const ended = endedBy.get(runId)
    if (ended !== undefined) followed.set(ended, { next: { runId, runAtMs: integer(row, 'run_at') }, dead: false })
  }
  yield* each(insertDeadLetters, dead)
  return followed
}

function* readPolicies(jobIds: readonly string[]): Work<Map<string, JobPolicy>> {
  const jobs = yield* each(
    readJobs,
    jobIds.map((id) => [id]),
  )
  return new Map(jobs.map((row) => [text(row, 'job_id'), JSON.parse(text(row, 'policy')) as JobPolicy]))
}

function deadLetter(row: Row, error: RunError, retryCount: number): SqlValue[] {
  const [jobId, runId, queue] = [text(row, 'job_id'), text(row, 'id'), text(row, 'queue')]
  const [code, message] = [storable(error.code), storable(error.message)]
  return [jobId, runId, queue, text(row, 'kind'), text(row, 'user_id'), code, message, retryCount]
}

/** PostgreSQL holds no NUL. Refusing an error for its text would leave its run RUNNING for ever. */
function storable(text: string): string {
  return text.replaceAll('\u0000', '\ufffd')
}
