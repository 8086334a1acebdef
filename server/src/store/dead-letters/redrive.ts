import type { RedriveState } from '@ichido/sdk/protocol'
import { FIRST_ID, LAST_ID } from '../../core/run/job.ts'
import { record } from '../access/audit.ts'
import { type RetryOutcome, retryJobs } from '../jobs/retry-jobs.ts'
import type { QueueTime } from '../leasing/fair-tags.ts'
import { lockUsersOf } from '../limits/users.ts'
import { type Command, command, commandIn, type Listed, pageOf } from '../port.ts'
import {
  each,
  exactlyOne,
  one,
  query,
  type RowOf,
  type SqlValue,
  select,
  type Values,
  type Work,
} from '../statement.ts'
import type { Term } from '../system/term.ts'
import { ask, conditions, type DeadFilter, renderFilter } from './dead-letters.ts'
import * as sql from './redrive.sql.ts'

/** A redrive retries many dead letters one after the other. It can be watched and aborted as a whole. */
export interface Redrive {
  redriveId: string
  actor: string
  /** Null: it has a list of jobs. */
  filter: DeadFilter | null
  perSecond: number | null
  state: RedriveState
  version: number
  /** True if all its dead letters are marked. */
  marked: boolean
  at: { deadAtMs: number; userId: string; jobId: string }
  matched: number
  redriven: number
  /** Dead letters that met a full quota, and will be tried again. */
  waiting: number
  /** Dead letters that were retried meanwhile, or whose key names another job now. */
  skipped: number
  nextAtMs: number
  beganAtMs: number
  endedAtMs: number | null
}

export interface NewRedrive {
  redriveId: string
  auditId: string
  actor: string
  filter: DeadFilter
  /** Null: all that match the filter. */
  jobIds: readonly string[] | null
  perSecond: number | null
}

export function countMatching(filter: DeadFilter, jobIds: readonly string[] | null): Command<number> {
  return command('count_matching', () => matching(filter, jobIds))
}

function* matching(filter: DeadFilter, jobIds: readonly string[] | null): Work<number> {
  const params: SqlValue[] = []
  const where = [...conditions(filter, params), sql.FREE]
  if (jobIds !== null) where.push(`d.job_id IN (${jobIds.map((id) => `$${params.push(id)}`).join()})`)
  const count = `SELECT count(*) AS count FROM ichido.dead_letters d WHERE ${where.join(' AND ')}`
  const [found] = yield* ask({ count: 'integer' } as const, count, params)
  return found?.count ?? 0
}

/** Marks listed dead letters at once. Those that match a filter are marked by the following steps. */
export function beginRedrive(item: NewRedrive): Command<Redrive> {
  return command('begin_redrive', function* work(again): Work<Redrive> {
    const { redriveId, actor, filter, jobIds, perSecond } = item
    const unheard = again ? yield* one(sql.readRedrive, { id: redriveId }) : undefined
    if (unheard !== undefined) return toRedrive(unheard)
    let matched = 0
    if (jobIds === null) matched = yield* matching(filter, null)
    else {
      const listed = [...new Set(jobIds)].sort()
      const rows = listed.map((jobId) => ({ redrive_id: redriveId, job_id: jobId, user_id: filter.userId }))
      matched = (yield* each(sql.markListed, rows)).length
    }
    const stored = JSON.stringify(jobIds === null ? filter : null)
    const marked = jobIds !== null
    yield* query(sql.insertRedrive, { id: redriveId, actor, filter: stored, per_second: perSecond, marked, matched })
    const asked = jobIds === null ? { filter: renderFilter(filter) } : { job_ids: jobIds }
    const after = { ...asked, matched, per_second: perSecond }
    yield* record({ id: item.auditId, actor }, 'redrive.begin', redriveId, null, after)
    return toRedrive(yield* exactlyOne(sql.readRedrive, { id: redriveId }))
  })
}

/** Returns null if the redrive has ended. It waits for a running step, and no step follows. */
export function abortRedrive(redriveId: string, actor: string, auditId: string): Command<Redrive | null> {
  return command('abort_redrive', function* work(): Work<Redrive | null> {
    const row = yield* one(sql.endRedrive, { id: redriveId, state: 'aborted' })
    if (row === undefined) return null
    const redrive = toRedrive(row)
    yield* record({ id: auditId, actor }, 'redrive.abort', redriveId, null, countsOf(redrive))
    return redrive
  })
}

export function findRedrive(redriveId: string): Command<Redrive | null> {
  return command('find_redrive', function* work(): Work<Redrive | null> {
    const row = yield* one(sql.readRedrive, { id: redriveId })
    return row === undefined ? null : toRedrive(row)
  })
}

/** Newest first. */
export function listRedrives(actor: string | null, limit: number, after: string | null): Command<Listed<Redrive>> {
  return command('list_redrives', function* work(): Work<Listed<Redrive>> {
    const params: SqlValue[] = []
    const where = ['true']
    if (actor !== null) where.push(`actor = $${params.push(actor)}`)
    if (after !== null) where.push(`id < $${params.push(after)}`)
    const list = `SELECT ${sql.REDRIVE_COLUMNS} FROM ichido.redrives WHERE ${where.join(' AND ')}
      ORDER BY id DESC LIMIT ${limit + 1}`
    const rows = (yield* select(sql.REDRIVE_ROW, list, params)).map(toRedrive)
    return pageOf(rows, limit, ({ redriveId }) => redriveId)
  })
}

interface RunningRedrive {
  redriveId: string
  version: number
  /** The time until it may continue; 0 or less: now. */
  inMs: number
}

export function runningRedrives(max: number): Command<RunningRedrive[]> {
  return command('running_redrives', function* work(): Work<RunningRedrive[]> {
    const rows = yield* query(sql.readRunning, { max })
    return rows.map(({ id, version, in_ms }) => ({ redriveId: id, version, inMs: in_ms }))
  })
}

function countsOf({ matched, redriven, waiting, skipped }: Redrive) {
  return { matched, redriven, waiting, skipped }
}

function toRedrive(row: Values<typeof sql.REDRIVE_ROW>): Redrive {
  return {
    redriveId: row.id,
    actor: row.actor,
    filter: row.filter,
    perSecond: row.per_second,
    state: row.state,
    version: row.version,
    marked: row.marked,
    at: { deadAtMs: row.at_dead_at, userId: row.at_user_id, jobId: row.at_job_id },
    matched: row.matched,
    redriven: row.redriven,
    waiting: row.waiting,
    skipped: row.skipped,
    nextAtMs: row.next_at,
    beganAtMs: row.began_at,
    endedAtMs: row.ended_at,
  }
}

interface StepItem {
  redriveId: string
  /** The version that was seen: if two leaders continue at once, one takes the step. */
  version: number
  /** Ids for the runs that this step may make. Their number is the step's maximum. */
  nextRunIds: readonly string[]
  auditId: string
  /** The times of queues that this node has not shared yet. */
  leased: readonly QueueTime[]
}

interface Stepped {
  retried: Extract<RetryOutcome, { kind: 'retried' }>[]
  ended: boolean
}

/** Marking in bulk costs less than retrying. */
const MARK_MAX = 1_000
/** The pause before dead letters that met a full quota are tried again. */
const QUOTA_WAIT_MS = 1_000
const STEPS_PER_SECOND = 4

/**
 * Takes one bounded step of a redrive, and stores its place in the same transaction. A crash undoes both, and a second
 * leader finds another version, so no dead letter is redriven twice. Locks: users, the term, the redrive, then as a
 * retry. A wait for a user under the lock of the term would block the leader's own renewal.
 */
export function stepRedrive(term: Term, item: StepItem): Command<Stepped> {
  return commandIn('users', 'redrive', function* work(): Work<Stepped> {
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

/** Later dead letters are not part of the redrive. */
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
  // The initial count was an estimate.
  const before = at.deadAtMs === 0 ? 0 : matched
  const last = rows.sort(byPlace).at(-1)
  yield* query(sql.recordMarked, {
    id: redriveId,
    marked: last === undefined,
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
    item.leased,
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
  // A user's turn ends at the first job that its quota refuses; the rest is not tried before the next pass.
  const full = waiting.some((outcome) => outcome.jobId === job_id)
  const rest = full ? (yield* exactlyOne(sql.countMarked, { redrive_id: redriveId, user_id, job_id })).count : 0
  const paceMs = perSecond === null ? 0 : Math.ceil((retried.length * 1000) / perSecond)
  yield* query(sql.recordStep, {
    id: redriveId,
    at_user_id: user_id,
    at_job_id: full ? LAST_ID : job_id,
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

/** Ends a pass. If dead letters met a full quota, another pass follows; otherwise the redrive is done. */
function* endPass(redrive: Redrive, item: StepItem, waiting: number, nowMs: number): Work<Stepped> {
  const { redriveId, redriven, skipped } = redrive
  if (waiting > 0) {
    const start = { at_user_id: '', at_job_id: FIRST_ID, next_at: nowMs + QUOTA_WAIT_MS }
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
