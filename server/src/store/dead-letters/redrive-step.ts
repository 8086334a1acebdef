import { record } from '../access/audit.ts'
import { type RetryOutcome, retryJobs } from '../jobs/retry-jobs.ts'
import type { TagsFor } from '../leasing/fair-tags.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, query, type RowOf, type SqlValue, type Work } from '../statement.ts'
import type { Term } from '../system/leadership.ts'
import { ask, conditions } from './dead-letters.ts'
import { countsOf, type Redrive, toRedrive } from './redrive.ts'
import * as sql from './redrives.sql.ts'

export interface StepItem {
  redriveId: string
  /** As it was seen: of two that go on with it at once, one takes the step. */
  version: number
  /** Made beforehand, for the runs that this step may make; their number is its maximum. */
  nextRunIds: readonly string[]
  auditId: string
  tagsFor: TagsFor
}

export interface Stepped {
  retried: Extract<RetryOutcome, { kind: 'retried' }>[]
  ended: boolean
}

/** Marks in bulk cost less than retries. */
const MARK_MAX = 1_000
/** Before those that met a full quota are tried again. */
const QUOTA_WAIT_MS = 1_000
const STEPS_PER_SECOND = 4
const NO_JOB = '00000000-0000-0000-0000-000000000000'
const LAST_JOB = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/**
 * One bounded step of a redrive, in one transaction with the place that it came to. A crash undoes both, and a second leader
 * finds another version: no dead letter is redriven twice. Locks: users, the term, the redrive, then as a retry: whoever
 * waited for a user with the term in its hand would hold up its own renewal.
 */
export function stepRedrive(term: Term, item: StepItem): Command<Stepped> {
  return command('redrive', function* work(): Work<Stepped> {
    const seen = yield* one(sql.readRedrive, { id: item.redriveId })
    if (seen === undefined) return { retried: [], ended: false }
    const ahead = yield* readNext(toRedrive(seen), item)
    yield* lockUsersOf(ahead.map((letter) => letter.user_id))
    const row = yield* one(sql.takeStep, { ...term, id: item.redriveId, version: item.version })
    if (row === undefined) return { retried: [], ended: false }
    const redrive = toRedrive(row)
    if (redrive.marked) return yield* redriveSome(redrive, item, row.now)
    yield* markSome(redrive)
    return { retried: [], ended: false }
  })
}

/** Dead letters that come after the redrive began are not part of it. */
function* markSome({ redriveId, filter, beganAtMs, at, matched }: Redrive): Work<void> {
  const params: SqlValue[] = []
  const where = conditions(filter ?? missing(), params)
  const bind = (value: SqlValue) => `$${params.push(value)}`
  where.push(`(d.dead_at, d.job_id) > (${bind(at.deadAtMs)}, ${bind(at.jobId)})`, `d.dead_at <= ${bind(beganAtMs)}`)
  const found = `SELECT d.job_id FROM ichido.dead_letters d WHERE ${where.join(' AND ')} AND ${sql.FREE}
    ORDER BY d.dead_at, d.job_id LIMIT ${MARK_MAX}`
  const mark = `UPDATE ichido.dead_letters AS d SET redrive_id = ${bind(redriveId)} WHERE d.job_id IN (${found}) AND ${sql.FREE}
    RETURNING job_id, dead_at`
  const rows = yield* ask({ job_id: 'text', dead_at: 'integer' } as const, mark, params)
  // The count that the redrive began with was a forecast.
  const before = at.deadAtMs === 0 ? 0 : matched
  const last = rows.sort(byPlace).at(-1)
  yield* query(sql.recordMarked, {
    id: redriveId,
    marked: last === undefined,
    matched: before + rows.length,
    at_dead_at: last?.dead_at ?? 0,
    at_job_id: last?.job_id ?? NO_JOB,
  })
}

interface Place {
  dead_at: number
  job_id: string
}

const byPlace = (a: Place, b: Place) => a.dead_at - b.dead_at || (a.job_id < b.job_id ? -1 : 1)

type Marked = RowOf<typeof sql.readMarked>

/** The dead letters of the next step. */
function* readNext({ redriveId, marked, at, perSecond }: Redrive, { nextRunIds }: StepItem): Work<Marked[]> {
  if (!marked) return []
  const max = Math.min(nextRunIds.length, perSecond === null ? Infinity : Math.ceil(perSecond / STEPS_PER_SECOND))
  return yield* query(sql.readMarked, { redrive_id: redriveId, user_id: at.userId, job_id: at.jobId, max })
}

function* redriveSome(redrive: Redrive, item: StepItem, nowMs: number): Work<Stepped> {
  const { redriveId, at, perSecond } = redrive
  const first = at.userId === ''
  const rows = yield* readNext(redrive, item)
  const last = rows.at(-1)
  if (last === undefined) return yield* endPass(redrive, item, first ? 0 : redrive.waiting, nowMs)

  const outcomes = yield* retryJobs(
    rows.map((row, i) => ({ jobId: row.job_id, nextRunId: item.nextRunIds[i] ?? missing() })),
    false,
    item.tagsFor,
  )
  const retried = outcomes.filter((outcome) => outcome.kind === 'retried')
  const refused = outcomes.filter((outcome) => outcome.kind === 'refused')
  const waiting = refused.filter(meetsFullQuota)
  const skipped = refused.filter((outcome) => !meetsFullQuota(outcome))
  yield* each(
    sql.unmark,
    skipped.map(({ jobId }) => ({ redrive_id: redriveId, job_id: jobId })),
  )

  const { user_id, job_id } = last
  // A user's turn is over with the first that its quota refuses; the rest is not even tried before the next pass.
  const full = waiting.some((outcome) => outcome.jobId === job_id)
  const rest = full ? (yield* exactlyOne(sql.countMarked, { redrive_id: redriveId, user_id, job_id })).count : 0
  const paceMs = perSecond === null ? 0 : Math.ceil((retried.length * 1000) / perSecond)
  yield* query(sql.recordStep, {
    id: redriveId,
    at_user_id: user_id,
    at_job_id: full ? LAST_JOB : job_id,
    redriven: redrive.redriven + retried.length,
    waiting: (first ? 0 : redrive.waiting) + waiting.length + rest,
    skipped: redrive.skipped + skipped.length,
    next_at: nowMs + paceMs,
  })
  return { retried, ended: false }
}

function meetsFullQuota(outcome: RetryOutcome): boolean {
  return outcome.kind === 'refused' && ['QUOTA_EXCEEDED', 'COST_LIMIT_EXCEEDED'].includes(outcome.reason)
}

/** Every one had its turn: those that met a full quota have another one, and without any the redrive is done. */
function* endPass(redrive: Redrive, item: StepItem, waiting: number, nowMs: number): Work<Stepped> {
  const { redriveId, redriven, skipped } = redrive
  if (waiting > 0) {
    const start = { at_user_id: '', at_job_id: NO_JOB, next_at: nowMs + QUOTA_WAIT_MS }
    yield* query(sql.recordStep, { id: redriveId, ...start, redriven, waiting, skipped })
    return { retried: [], ended: false }
  }
  const ended = toRedrive(yield* exactlyOne(sql.endRedrive, { id: redriveId, state: 'done' }))
  yield* record({ id: item.auditId, actor: ended.actor }, 'redrive.done', redriveId, null, countsOf(ended))
  return { retried: [], ended: true }
}

function missing(): never {
  throw new Error('A step has an id for each run it may make; its redrive is running, with a filter or all marked')
}
