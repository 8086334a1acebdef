import { FIRST_ID, LAST_ID } from '../../core/run/job.ts'
import { ask, conditions, type DeadFilter } from '../dead-letters/dead-letters.ts'
import { FREE } from '../dead-letters/free.sql.ts'
import type { StateCount } from '../jobs/list-jobs.ts'
import { retryJobs } from '../jobs/retry-jobs.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, query, type RowOf, type SqlValue, type Work } from '../statement.ts'
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

function matchingRows(filter: DeadFilter, jobIds: readonly string[] | null) {
  const params: SqlValue[] = []
  const where = [...conditions(filter, params), FREE]
  if (jobIds !== null) where.push(`d.job_id IN (${jobIds.map((id) => `$${params.push(id)}`).join()})`)
  return { where: where.join(' AND '), params }
}

export function countMatching(filter: DeadFilter, jobIds: readonly string[] | null): Command<number> {
  return command('count_matching', () => matching(filter, jobIds))
}

export function* matching(filter: DeadFilter, jobIds: readonly string[] | null): Work<number> {
  const { where, params } = matchingRows(filter, jobIds)
  const count = `SELECT count(*) AS count FROM ichido.dead_letters d WHERE ${where}`
  const [found] = yield* ask({ count: 'integer' } as const, count, params)
  return found?.count ?? 0
}

/** By state, up to `max` of all. */
export function* matchingStates(filter: DeadFilter, jobIds: readonly string[] | null, max: number): Work<StateCount[]> {
  const { where, params } = matchingRows(filter, jobIds)
  const some = `SELECT e.state FROM ichido.dead_letters d CROSS JOIN ichido.ended e
    WHERE ${where} AND by_key(e.job_id, d.job_id) AND e.latest LIMIT ${max}`
  const counts = `SELECT state, count(*) AS count FROM (${some}) AS first_ones GROUP BY state`
  const rows = yield* ask({ state: 'text', count: 'integer' } as const, counts, params)
  const capped = rows.reduce((sum, { count }) => sum + count, 0) >= max
  return rows.map((row) => ({ ...row, capped }))
}

/** Marking in bulk costs less than retrying. */
const MARK_MAX = 1_000
/** The pause before dead letters that met a full quota are tried again. */
const QUOTA_WAIT_MS = 1_000

/** Marks some dead letters, or retries some that are marked. */
export function* redriveStep(redrive: Operation, item: StepItem, nowMs: number): Work<Stepped> {
  if (redrive.prepared) return yield* redriveSome(redrive, item, nowMs)
  yield* markSome(redrive)
  return NOTHING
}

/** Later dead letters are not part of the redrive. */
function* markSome({ operationId, deadFilter, beganAtMs, at, matched }: Operation): Work<void> {
  const params: SqlValue[] = []
  const where = conditions(deadFilter ?? missing(), params)
  const bind = (value: SqlValue) => `$${params.push(value)}`
  where.push(`(d.dead_at, d.job_id) > (${bind(at.deadAtMs)}, ${bind(at.jobId)})`, `d.dead_at <= ${bind(beganAtMs)}`)
  const found = `SELECT d.job_id FROM ichido.dead_letters d WHERE ${where.join(' AND ')} AND ${FREE}
    ORDER BY d.dead_at, d.job_id LIMIT ${MARK_MAX}`
  const mark = `UPDATE ichido.dead_letters AS d SET redrive_id = ${bind(operationId)} WHERE d.job_id IN (${found}) AND ${FREE}
    RETURNING job_id, dead_at`
  const rows = yield* ask({ job_id: 'text', dead_at: 'integer' } as const, mark, params)
  // The initial count was an estimate.
  const before = at.deadAtMs === 0 ? 0 : matched
  const last = rows.sort(byPlace).at(-1)
  yield* query(sql.recordPrepared, {
    id: operationId,
    prepared: last === undefined,
    matched: before + rows.length,
    at_dead_at: last?.dead_at ?? 0,
    at_job_id: last?.job_id ?? FIRST_ID,
  })
}

interface Place {
  dead_at: number
  job_id: string
}

const byPlace = (a: Place, b: Place) => a.dead_at - b.dead_at || (a.job_id < b.job_id ? -1 : 1)

type Marked = RowOf<typeof sql.readMarked>

/** The dead letters of the next step. */
export function* nextLetters(redrive: Operation, item: StepItem): Work<Marked[]> {
  const { operationId, prepared, at } = redrive
  if (!prepared) return []
  const max = batchOf(redrive, item)
  return yield* query(sql.readMarked, { redrive_id: operationId, user_id: at.userId, job_id: at.jobId, max })
}

function* redriveSome(redrive: Operation, item: StepItem, nowMs: number): Work<Stepped> {
  const { operationId, at, matched, refused } = redrive
  const first = at.userId === ''
  const rows = yield* nextLetters(redrive, item)
  const last = rows.at(-1)
  if (last === undefined) return yield* endPass(redrive, item, first ? 0 : redrive.waiting, nowMs)

  const outcomes = yield* retryJobs(
    rows.map((row, i) => ({ jobId: row.job_id, nextRunId: item.nextRunIds[i] ?? missing() })),
    false,
    item.leased,
  )
  const retried = outcomes.filter((outcome) => outcome.kind === 'retried')
  const left = outcomes.filter((outcome) => outcome.kind === 'refused')
  const waiting = left.filter(meetsFullQuota)
  const skipped = left.filter((outcome) => !meetsFullQuota(outcome))
  yield* each(
    sql.unmark,
    skipped.map(({ jobId }) => ({ redrive_id: operationId, job_id: jobId })),
  )

  const { user_id, job_id } = last
  // A user's turn ends at the first job that its quota refuses; the rest is not tried before the next pass.
  const full = waiting.some((outcome) => outcome.jobId === job_id)
  const rest = full ? (yield* exactlyOne(sql.countMarked, { redrive_id: operationId, user_id, job_id })).count : 0
  yield* query(sql.recordStep, {
    id: operationId,
    at_user_id: user_id,
    at_job_id: full ? LAST_ID : job_id,
    matched,
    done: redrive.done + retried.length,
    waiting: (first ? 0 : redrive.waiting) + waiting.length + rest,
    skipped: redrive.skipped + skipped.length,
    refused,
    next_at: nowMs + paceMs(redrive, retried.length),
  })
  return { ...NOTHING, action: redrive.action, retried }
}

/** Ends a pass. If dead letters met a full quota, another pass follows; otherwise the redrive is done. */
function* endPass(redrive: Operation, item: StepItem, waiting: number, nowMs: number): Work<Stepped> {
  const { operationId, matched, done, skipped, refused } = redrive
  if (waiting > 0) {
    const start = { at_user_id: '', at_job_id: FIRST_ID, next_at: nowMs + QUOTA_WAIT_MS }
    yield* query(sql.recordStep, { id: operationId, ...start, matched, done, waiting, skipped, refused })
    return NOTHING
  }
  yield* completeOperation(operationId, item.auditId)
  return { ...NOTHING, ended: true }
}

function missing(): never {
  throw new Error('A step has an id for each run it may make; its redrive is running, with a filter or all marked')
}
