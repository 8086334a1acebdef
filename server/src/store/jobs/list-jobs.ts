import { UPLOAD_WAIT_MS } from '../../core/run/artifact.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { JOB_IN_ROOMS } from '../runs/rooms.sql.ts'
import { type SqlValue, select, type Work } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'
import { LISTED_COLUMNS, LISTED_ROW, type ListedJob } from './read-jobs.ts'

/** A PENDING job waits for its artifacts, for its `run_at`, or only for a worker. */
type PendingFor = 'artifacts' | 'run_at' | 'worker'

export interface JobFilter {
  states: readonly string[]
  /** Restricts PENDING jobs; null: all of them. */
  pendingFor: PendingFor | null
  userId: string | null
  queue: string | null
  kind: string | null
  label: { name: string; value: string } | null
  key: string | null
  createdFromMs: number | null
  createdToMs: number | null
}

export const EVERY_JOB: JobFilter = {
  states: [],
  pendingFor: null,
  userId: null,
  queue: null,
  kind: null,
  label: null,
  key: null,
  createdFromMs: null,
  createdToMs: null,
}

/**
 * Newest first. Job ids are UUIDv7, so they rise with time. A page begins in an index where the last page ended, so it costs the
 * same with any number of jobs. The table whose index fits the filter best leads. It gives the ids of the page, and then each
 * room is looked up by these ids. One statement does it all: a job that changes rooms is neither missed nor listed twice.
 */
export function listJobs(
  filter: JobFilter,
  limit: number,
  after: string | null,
  offset = 0,
): Command<Listed<ListedJob>> {
  return command('list_jobs', function* work(): Work<Listed<ListedJob>> {
    const { sql, params } = idsOf(filter, offset + limit + 1, after)
    const page = `SELECT job_id FROM (${sql}) AS ids ORDER BY job_id DESC LIMIT ${limit + 1} OFFSET ${offset}`
    const text = `SELECT ${LISTED_COLUMNS} FROM (${page}) AS p CROSS JOIN ${JOB_IN_ROOMS} WHERE j.id = p.job_id ORDER BY j.id DESC`
    const rows = yield* select(LISTED_ROW, text, params)
    return pageOf(rows, limit, ({ job_id }) => job_id)
  })
}

/** The number of jobs, counted up to `max`: it never reads a million jobs. */
export function countListed(filter: JobFilter, max: number): Command<number> {
  return command('count_listed', function* work(): Work<number> {
    const { sql, params } = idsOf(filter, max, null)
    const text = `SELECT count(*) AS count FROM (${sql} LIMIT ${max}) AS listed`
    const [row] = yield* select({ count: 'integer' }, text, params)
    return row?.count ?? 0
  })
}

/** A part for each state, so that each part uses an index. Each part has at most `limit` rows. */
function idsOf(filter: JobFilter, limit: number, after: string | null) {
  const states = filter.states.length === 0 ? [null] : [...new Set(filter.states)]
  const params: SqlValue[] = []
  const bind = (value: SqlValue) => `$${params.push(value)}`
  const parts = states.map((state) => `SELECT * FROM (${partOf(filter, state, limit, after, bind)}) AS part`)
  return { sql: parts.join(' UNION ALL '), params }
}

function partOf(
  filter: JobFilter,
  state: string | null,
  limit: number,
  after: string | null,
  bind: (value: SqlValue) => string,
): string {
  const where: string[] = []
  const lead = leadOf(filter, state)
  const room = state === null ? null : roomOf(state)
  const path = [...new Set<Alias>([lead, 'j', ...(room === null ? [] : [room])])]
  if (room !== null) where.push(inState(room, state ?? '', bind))
  if (state === 'PENDING' && filter.pendingFor !== null) where.push(PENDING_FOR[filter.pendingFor])
  const has = (aliases: readonly Alias[]) => (aliases.includes(lead) ? lead : 'j')
  if (filter.userId !== null) where.push(`${has(['q', 'h', 'e'])}.user_id = ${bind(filter.userId)}`)
  // Leads to the index ready_user.
  if (filter.userId !== null && lead === 'q') where.push('q.version > 0')
  if (filter.queue !== null) where.push(`${has(['q', 'h'])}.queue = ${bind(filter.queue)}`)
  if (filter.kind !== null) where.push(`${has(['q', 'h'])}.kind = ${bind(filter.kind)}`)
  if (filter.key !== null) where.push(`k.idempotency_key = ${bind(filter.key)}`)
  if (filter.label !== null) {
    if (lead !== 'l') path.push('l')
    where.push(`l.name = ${bind(filter.label.name)}`, `l.value = ${bind(filter.label.value)}`)
  }
  if (filter.createdFromMs !== null) {
    where.push(`j.created_at >= ${bind(filter.createdFromMs)}`)
    where.push(`${ID[lead]} >= ${bind(idAt(filter.createdFromMs - SKEW_MS))}`)
  }
  if (filter.createdToMs !== null) {
    where.push(`j.created_at < ${bind(filter.createdToMs)}`)
    where.push(`${ID[lead]} < ${bind(idAt(filter.createdToMs + SKEW_MS))}`)
  }
  if (after !== null) where.push(`${ID[lead]} < ${bind(after)}`)
  // Forces the join order: SQLite by CROSS JOIN, PostgreSQL by coalesce. Otherwise PostgreSQL would merge the two orders of ids.
  // For a user without new jobs, it would read all newer runs of other users.
  const sameJob = (alias: Alias) => `${ID[alias]} = coalesce(${ID[lead]}, ${ID[lead]})`
  for (const alias of path.slice(1)) where.push(sameJob(alias))
  let from = path.map((alias) => `ichido.${TABLE[alias]} ${alias}`).join(' CROSS JOIN ')
  // Only ended jobs expire.
  if (room === null) from += ` LEFT JOIN ichido.ended e ON ${sameJob('e')} AND e.latest`
  if (room === null || room === 'e') where.push(`NOT ${EXPIRED}`)
  return `SELECT ${ID[lead]} AS job_id FROM ${from} ${where.length === 0 ? '' : `WHERE ${where.join(' AND ')}`}
    ORDER BY ${ID[lead]} DESC LIMIT ${limit}`
}

type RoomAlias = 'q' | 'h' | 'e'

function roomOf(state: string): RoomAlias {
  if (state === 'PENDING' || state === 'ORPHANED') return 'q'
  return state === 'ASSIGNED' || state === 'RUNNING' ? 'h' : 'e'
}

function inState(room: RoomAlias, state: string, bind: (value: SqlValue) => string): string {
  if (room === 'q') return state === 'PENDING' ? 'q.worker_id IS NULL' : 'q.worker_id IS NOT NULL'
  if (room === 'h') return state === 'ASSIGNED' ? 'h.started_at IS NULL' : 'h.started_at IS NOT NULL'
  // The indexes of `ended` leave out most runs.
  return `e.latest AND e.state = ${bind(state)}${state === 'SUCCEEDED' ? '' : " AND e.state <> 'SUCCEEDED'"}`
}

/**
 * A run that was due from the start waits for a worker, whatever the clock of its node shows. The time is a subquery, so that it
 * is read once and an index can be used.
 */
const DELAYED = '(q.run_at > j.created_at AND q.run_at > (SELECT now_ms()))'
const PENDING_FOR: Readonly<Record<PendingFor, string>> = {
  artifacts: `q.run_at >= ${UPLOAD_WAIT_MS}`,
  // The first condition leads to the index of delayed runs.
  run_at: `q.fair_tag IS NULL AND q.run_at > (SELECT now_ms()) AND q.run_at < ${UPLOAD_WAIT_MS} AND q.run_at > j.created_at`,
  worker: `q.run_at < ${UPLOAD_WAIT_MS} AND NOT ${DELAYED}`,
}

type Alias = 'j' | 'l' | 'k' | 'w' | RoomAlias
const TABLE: Record<Alias, string> = {
  j: 'jobs',
  l: 'job_labels',
  k: 'idempotency_keys',
  w: 'upload_waits',
  q: 'ready',
  h: 'held',
  e: 'ended',
}
const ID: Record<Alias, string> = {
  j: 'j.id',
  l: 'l.job_id',
  k: 'k.job_id',
  w: 'w.job_id',
  q: 'q.job_id',
  h: 'h.job_id',
  e: 'e.job_id',
}

/** The table whose index fits the filter best. */
function leadOf(filter: JobFilter, state: string | null): Alias {
  if (filter.key !== null) return 'k'
  // Few PENDING jobs wait for artifacts.
  if (state === 'PENDING' && filter.pendingFor === 'artifacts') return 'w'
  if (state === 'PENDING' && filter.pendingFor === 'run_at') return 'q'
  // Few runs are in these states: workers hold them, or have just lost them.
  if (state === 'ORPHANED') return 'q'
  if (state !== null && roomOf(state) === 'h') return 'h'
  if (filter.label !== null) return 'l'
  if (state === null) return 'j'
  if (roomOf(state) === 'q') return 'q'
  // Most jobs have ended, and most of them have succeeded. A user, a queue or a kind has fewer of them.
  const narrow = filter.queue ?? filter.kind
  if (state === 'SUCCEEDED') return (filter.userId ?? narrow) === null ? 'e' : 'j'
  return filter.userId === null && narrow !== null ? 'j' : 'e'
}

/** An id has the time of its node, and created_at the time of the store. They may differ by this much. */
const SKEW_MS = 3_600_000

/** The smallest UUIDv7 of an instant. */
export function idAt(ms: number): string {
  const hex = Math.min(Math.max(ms, 0), 2 ** 48 - 1)
    .toString(16)
    .padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
