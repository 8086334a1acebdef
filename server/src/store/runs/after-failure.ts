import { storableText } from '../../core/json/storable-text.ts'
import { DEFAULT_BACKOFF, retryDelayMs } from '../../core/run/backoff.ts'
import { hasRetriesLeft, type JobPolicy } from '../../core/run/job.ts'
import { readJobs } from '../jobs/jobs.sql.ts'
import { each, integer, type Row, type SqlValue, text, type Work } from '../statement.ts'
import { recordMoves } from './lifecycle.ts'
import { insertDeadLetters, insertNextRuns, supersedeRuns } from './runs.sql.ts'

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
  /** The job is not to blame: its next run is due at once and costs no retry. */
  released?: boolean
  /** Made beforehand, for the run that follows. */
  nextRunId: string
  /** In [0, 1): spreads retries. */
  random: number
}

export interface Followed {
  /** `due`: its queue has work again. */
  next: { runId: string; runAtMs: number; queue: string; due: boolean } | null
  dead: boolean
  retryCount: number
}

/** After a failure comes the next run of the job or, when nothing is left to try, a dead letter. By ended run. */
export function* followFailures(failures: readonly Failure[]): Work<Map<string, Followed>> {
  const policies = yield* readPolicies(failures.map(({ row }) => text(row, 'job_id')))
  const followed = new Map<string, Followed>()
  const endedBy = new Map<string, { runId: string; retryCount: number; due: boolean }>()
  const next: SqlValue[][] = []
  const dead: SqlValue[][] = []
  for (const failure of failures) {
    const { row, nextRunId } = failure
    const runId = text(row, 'id')
    const { retryCount, delayMs } = whatFollows(failure, policies.get(text(row, 'job_id')) ?? {})
    if (delayMs === null) {
      dead.push(deadLetter(row, failure.error, retryCount))
      followed.set(runId, { next: null, dead: true, retryCount })
    } else {
      next.push([runId, nextRunId, delayMs, retryCount])
      endedBy.set(nextRunId, { runId, retryCount, due: delayMs === 0 })
    }
  }
  yield* each(
    supersedeRuns,
    next.map(([runId = null]) => [runId]),
  )
  const inserted = yield* each(insertNextRuns, next)
  yield* recordMoves(inserted)
  for (const row of inserted) {
    const nextId = text(row, 'run_id')
    const ended = endedBy.get(nextId)
    if (ended === undefined) continue
    const { runId, retryCount, due } = ended
    const run = { runId: nextId, runAtMs: integer(row, 'run_at'), queue: text(row, 'queue'), due }
    followed.set(runId, { next: run, dead: false, retryCount })
  }
  yield* each(insertDeadLetters, dead)
  return followed
}

/** No delay: nothing is left to try. */
function whatFollows(
  { row, retryable, released, random }: Failure,
  policy: JobPolicy,
): { retryCount: number; delayMs: number | null } {
  const before = integer(row, 'retry_count')
  if (released) return { retryCount: before, delayMs: 0 }
  const retryCount = before + 1
  if (!retryable || !hasRetriesLeft(policy, retryCount)) return { retryCount, delayMs: null }
  return { retryCount, delayMs: retryDelayMs(policy.backoff ?? DEFAULT_BACKOFF, before, random) }
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
  // Refusing an error for its text would leave its run RUNNING for ever.
  const [code, message] = [storableText(error.code), storableText(error.message)]
  return [jobId, runId, queue, text(row, 'kind'), text(row, 'user_id'), code, message, retryCount]
}
