import type { RedriveState } from '@ichido/sdk/protocol'
import { record } from '../access/audit.ts'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, pageOf, query, type SqlValue, select, type Values, type Work } from '../statement.ts'
import { ask, conditions, type DeadFilter, renderFilter } from './dead-letters.ts'
import * as sql from './redrives.sql.ts'

/** A redrive: many dead letters retried one after the other, as one thing that can be watched and aborted. */
export interface Redrive {
  redriveId: string
  actor: string
  /** Null: it was given a list of jobs. */
  filter: DeadFilter | null
  perSecond: number | null
  state: RedriveState
  version: number
  /** All that belong to it bear its mark. */
  marked: boolean
  at: { deadAtMs: number; userId: string; jobId: string }
  matched: number
  redriven: number
  /** Met a full quota, and will be tried again. */
  waiting: number
  /** Retried by somebody else meanwhile, or their key names another job by now. */
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

/** Listed dead letters are marked at once; those that match a filter by the steps that follow, however many they are. */
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

/** Null when it is not running any more. A step that is under way ends first; after the answer none follows. */
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

export interface RunningRedrive {
  redriveId: string
  version: number
  /** Until it may go on; not above 0 when it may now. */
  inMs: number
}

export function runningRedrives(max: number): Command<RunningRedrive[]> {
  return command('running_redrives', function* work(): Work<RunningRedrive[]> {
    const rows = yield* query(sql.readRunning, { max })
    return rows.map(({ id, version, in_ms }) => ({ redriveId: id, version, inMs: in_ms }))
  })
}

export function countsOf({ matched, redriven, waiting, skipped }: Redrive) {
  return { matched, redriven, waiting, skipped }
}

export function toRedrive(row: Values<typeof sql.REDRIVE_ROW>): Redrive {
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
