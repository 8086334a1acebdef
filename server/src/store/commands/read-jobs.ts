import { type Command, command } from '../port.ts'
import { countByState, readJobs, readResult, readRuns } from '../sql/jobs.ts'
import { readKeysOfJobs } from '../sql/keys.ts'
import { nextDue, promoteRuns } from '../sql/runs.ts'
import { each, integer, integerOrNull, one, query, type Row, text, textOrNull, type Work } from '../statement.ts'

export interface JobRows {
  job: Row
  runs: Row[]
  key: string | null
}

export function findJob(jobId: string): Command<JobRows | null> {
  return command('find_job', function* work(): Work<JobRows | null> {
    const [job] = yield* each(readJobs, [[jobId]])
    if (job === undefined) return null
    const runs = yield* query(readRuns, jobId)
    const [key] = yield* each(readKeysOfJobs, [[jobId]])
    return { job, runs, key: textOrNull(key, 'idempotency_key') }
  })
}

/** Jobs with the state of their latest run, in no order; unknown ids are left out. */
export function findJobs(jobIds: readonly string[]): Command<Row[]> {
  return command('find_jobs', () =>
    each(
      readJobs,
      jobIds.map((id) => [id]),
    ),
  )
}

export function findResult(jobId: string): Command<Row | undefined> {
  return command('find_result', () => one(readResult, jobId))
}

export function countJobs(): Command<Map<string, number>> {
  return command('count_jobs', function* work(): Work<Map<string, number>> {
    return new Map((yield* query(countByState)).map((row) => [text(row, 'state'), integer(row, 'count')]))
  })
}

export interface Promoted {
  /** Queues that have work now. */
  queues: string[]
  /** How many were moved: as many as allowed means that more may wait. */
  count: number
  /** Until the next delayed run is due; null when none waits. */
  nextInMs: number | null
}

export function promoteDue(max: number): Command<Promoted> {
  return command('promote', function* work(): Work<Promoted> {
    const rows = yield* query(promoteRuns, max)
    const next = yield* one(nextDue)
    return {
      queues: [...new Set(rows.map((row) => text(row, 'queue')))],
      count: rows.length,
      nextInMs: integerOrNull(next, 'in_ms'),
    }
  })
}
