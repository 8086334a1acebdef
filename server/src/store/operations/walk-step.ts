import { FIRST_ID } from '../../core/run/job.ts'
import { cancelJobs } from '../jobs/cancel-or-delete.ts'
import { readLatest } from '../jobs/ended-jobs.ts'
import { forEngines, idsOf, type JobFilter, type Span } from '../jobs/job-filter.sql.ts'
import { scanFrom } from '../jobs/list-jobs.ts'
import { retryJobs } from '../jobs/retry-jobs.ts'
import { each, query, select, type Work } from '../statement.ts'
import {
  batchOf,
  completeOperation,
  meetsFullQuota,
  NOTHING,
  type Operation,
  paceMs,
  type StepItem,
  type Stepped,
} from './operation.ts'
import * as sql from './operations.sql.ts'

/** The jobs that one step looks at. Most of them may not match. */
const SCAN_MAX = 10_000

/** The jobs of the next step, oldest first. */
interface NextJobs {
  ids: string[]
  /** How many jobs match as far as `place`: more than `ids` while the jobs are counted. */
  count: number
  /** The step has looked at all jobs up to this one; null: at all that are left. */
  place: string | null
}

/** Jobs that were made after the operation began are not part of it. */
function filterOf({ jobFilter, beganAtMs }: Operation): JobFilter {
  if (jobFilter === null) throw new Error('An operation has a filter or a list of jobs')
  return { ...jobFilter, createdToMs: Math.min(jobFilter.createdToMs ?? Infinity, beganAtMs + 1) }
}

export function* nextJobs(operation: Operation, item: StepItem): Work<NextJobs> {
  const { jobIds, prepared, at, beganAtMs } = operation
  const max = batchOf(operation, item)
  if (jobIds !== null) {
    const ids = jobIds.filter((id) => id > at.jobId).slice(0, max)
    return { ids, count: ids.length, place: ids.at(-1) ?? null }
  }
  const filter = filterOf(operation)
  const start: Span = { order: 'oldest', after: at.jobId, until: null, nowMs: beganAtMs }
  const span = yield* scanFrom(filter, start, SCAN_MAX)
  const found = idsOf(filter, prepared ? max : SCAN_MAX, span)
  if (found === null) return { ids: [], count: 0, place: null }
  const list = `SELECT job_id FROM (${found.sql}) AS ids ORDER BY job_id`
  const rows = yield* select({ job_id: 'text' }, forEngines(prepared ? `${list} LIMIT ${max}` : list), found.params)
  const ids = rows.map(({ job_id }) => job_id)
  if (!prepared) return { ids: [], count: ids.length, place: span.until }
  return { ids, count: ids.length, place: ids.length < max ? span.until : (ids.at(-1) ?? null) }
}

export function* ownersOf(jobIds: readonly string[]): Work<string[]> {
  const rows = yield* each(
    readLatest,
    jobIds.map((job_id) => ({ job_id })),
  )
  return rows.map(({ user_id }) => user_id)
}

/** Counts some jobs, or changes some that are counted. */
export function* walkStep(operation: Operation, next: NextJobs, item: StepItem, nowMs: number): Work<Stepped> {
  const { operationId, at, prepared } = operation
  if (!prepared) {
    // The initial count was an estimate.
    const before = at.jobId === FIRST_ID ? 0 : operation.matched
    yield* query(sql.recordPrepared, {
      id: operationId,
      prepared: next.place === null,
      matched: before + next.count,
      at_dead_at: 0,
      at_job_id: next.place ?? FIRST_ID,
    })
    return NOTHING
  }
  if (next.ids.length === 0 && next.place === null) {
    yield* completeOperation(operationId, item.auditId)
    return { ...NOTHING, ended: true }
  }
  const { stepped, done, skipped, refused } = yield* change(operation, next.ids, item)
  const counts = {
    done: operation.done + done,
    skipped: operation.skipped + skipped,
    refused: operation.refused + refused,
  }
  yield* query(sql.recordStep, {
    id: operationId,
    at_user_id: '',
    at_job_id: next.place ?? next.ids.at(-1) ?? at.jobId,
    // Jobs may have come to match since they were counted.
    matched: Math.max(operation.matched, counts.done + counts.skipped + counts.refused),
    waiting: 0,
    ...counts,
    next_at: nowMs + paceMs(operation, done),
  })
  return { ...NOTHING, ...stepped, action: operation.action }
}

function* change(operation: Operation, ids: readonly string[], item: StepItem) {
  if (operation.action === 'cancel') {
    const { canceled, requested } = yield* cancelJobs(ids, operation.jobFilter?.states ?? null)
    const done = canceled.length + requested.length
    return { stepped: { canceled, requested }, done, skipped: ids.length - done, refused: 0 }
  }
  const items = ids.map((jobId, i) => ({ jobId, nextRunId: item.nextRunIds[i] ?? missing() }))
  const outcomes = yield* retryJobs(items, false, item.leased)
  const retried = outcomes.filter((outcome) => outcome.kind === 'retried')
  const refused = outcomes.filter(meetsFullQuota).length
  const done = retried.length
  return { stepped: { retried }, done, skipped: ids.length - done - refused, refused }
}

function missing(): never {
  throw new Error('A step has an id for each run that it may make')
}
