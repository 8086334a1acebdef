import { record } from '../access/audit.ts'
import type { Listed } from '../jobs/list-jobs.ts'
import { type Command, command } from '../port.ts'
import {
  each,
  flag,
  integer,
  integerOrNull,
  one,
  query,
  type Row,
  type SqlValue,
  statement,
  text,
  type Work,
} from '../statement.ts'
import { asking, conditions, type DeadFilter, renderFilter } from './dead-letters.ts'
import * as sql from './redrives.sql.ts'

export type RedriveState = 'running' | 'done' | 'aborted'

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
  return integer(yield* one(asking(count), ...params), 'count')
}

/** Listed dead letters are marked at once; those that match a filter by the steps that follow, however many they are. */
export function beginRedrive(item: NewRedrive): Command<Redrive> {
  return command('begin_redrive', function* work(again): Work<Redrive> {
    const { redriveId, actor, filter, jobIds, perSecond } = item
    const unheard = again ? yield* one(sql.readRedrive, redriveId) : undefined
    if (unheard !== undefined) return toRedrive(unheard)
    let matched = 0
    if (jobIds === null) matched = yield* matching(filter, null)
    else {
      const rows = [...new Set(jobIds)].sort().map((jobId) => [redriveId, jobId, filter.userId])
      matched = (yield* each(sql.markListed, rows)).length
    }
    const stored = JSON.stringify(jobIds === null ? filter : null)
    yield* query(sql.insertRedrive, redriveId, actor, stored, perSecond, jobIds !== null, matched)
    const asked = jobIds === null ? { filter: renderFilter(filter) } : { job_ids: jobIds }
    const after = { ...asked, matched, per_second: perSecond }
    yield* record({ id: item.auditId, actor }, 'redrive.begin', redriveId, null, after)
    return toRedrive((yield* one(sql.readRedrive, redriveId)) ?? missing())
  })
}

/** Null when it is not running any more. A step that is under way ends first; after the answer none follows. */
export function abortRedrive(redriveId: string, actor: string, auditId: string): Command<Redrive | null> {
  return command('abort_redrive', function* work(): Work<Redrive | null> {
    const row = yield* one(sql.endRedrive, redriveId, 'aborted')
    if (row === undefined) return null
    const redrive = toRedrive(row)
    yield* record({ id: auditId, actor }, 'redrive.abort', redriveId, null, countsOf(redrive))
    return redrive
  })
}

export function findRedrive(redriveId: string): Command<Redrive | null> {
  return command('find_redrive', function* work(): Work<Redrive | null> {
    const row = yield* one(sql.readRedrive, redriveId)
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
    const rows = (yield* query(statement('', list), ...params)).map(toRedrive)
    const page = rows.slice(0, limit)
    return { rows: page, next: rows.length > limit ? (page.at(-1)?.redriveId ?? null) : null }
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
    return (yield* query(sql.readRunning, max)).map((row) => ({
      redriveId: text(row, 'id'),
      version: integer(row, 'version'),
      inMs: integer(row, 'in_ms'),
    }))
  })
}

export function countsOf({ matched, redriven, waiting, skipped }: Redrive) {
  return { matched, redriven, waiting, skipped }
}

export function toRedrive(row: Row): Redrive {
  return {
    redriveId: text(row, 'id'),
    actor: text(row, 'actor'),
    filter: JSON.parse(text(row, 'filter')) as DeadFilter | null,
    perSecond: integerOrNull(row, 'per_second'),
    state: text(row, 'state') as RedriveState,
    version: integer(row, 'version'),
    marked: flag(row, 'marked'),
    at: { deadAtMs: integer(row, 'at_dead_at'), userId: text(row, 'at_user_id'), jobId: text(row, 'at_job_id') },
    matched: integer(row, 'matched'),
    redriven: integer(row, 'redriven'),
    waiting: integer(row, 'waiting'),
    skipped: integer(row, 'skipped'),
    nextAtMs: integer(row, 'next_at'),
    beganAtMs: integer(row, 'began_at'),
    endedAtMs: integerOrNull(row, 'ended_at'),
  }
}

function missing(): never {
  throw new Error('A redrive that was just inserted is there')
}
