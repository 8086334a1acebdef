import { HELD_MS } from '../../core/run/artifact.ts'
import { FINAL_STATES, type RunState } from '../../core/run/run-state.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
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
 * same with any number of jobs. The table whose index fits the filter best leads the join.
 */
export function listJobs(
  filter: JobFilter,
  limit: number,
  after: string | null,
  offset = 0,
): Command<Listed<ListedJob>> {
  return command('list_jobs', function* work(): Work<Listed<ListedJob>> {
    const { sql, params } = unionOf(filter, LISTED_COLUMNS, offset + limit + 1, after)
    const page = `${sql} ORDER BY job_id DESC LIMIT ${limit + 1} OFFSET ${offset}`
    const rows = yield* select(LISTED_ROW, page, params)
    return pageOf(rows, limit, ({ job_id }) => job_id)
  })
}

/** The number of jobs, counted up to `max`: it never reads a million jobs. */
export function countListed(filter: JobFilter, max: number): Command<number> {
  return command('count_listed', function* work(): Work<number> {
    const { sql, params } = unionOf(filter, 'j.id AS job_id', max, null)
    const text = `SELECT count(*) AS count FROM (${sql} LIMIT ${max}) AS listed`
    const [row] = yield* select({ count: 'integer' }, text, params)
    return row?.count ?? 0
  })
}

/** A part for each state, so that each part uses an index. Each part has at most `limit` rows. */
function unionOf(filter: JobFilter, columns: string, limit: number, after: string | null) {
  const states = filter.states.length === 0 ? [null] : [...new Set(filter.states)]
  const params: SqlValue[] = []
  const bind = (value: SqlValue) => `$${params.push(value)}`
  const parts = states.map((state) => `SELECT * FROM (${partOf(filter, state, columns, limit, after, bind)}) AS part`)
  return { sql: parts.join(' UNION ALL '), params }
}

function partOf(
  filter: JobFilter,
  state: string | null,
  columns: string,
  limit: number,
  after: string | null,
  bind: (value: SqlValue) => string,
): string {
  const where = ['r.latest', `NOT ${EXPIRED}`]
  const lead = leadOf(filter, state)
  const path = [...new Set<Alias>([lead, 'j', 'r'])]
  if (state !== null) where.push(`r.state = ${bind(state)}`)
  if (state === 'PENDING' && filter.pendingFor !== null) {
    if (filter.pendingFor === 'run_at' && lead !== 'w') path.push('w')
    where.push(PENDING_FOR[filter.pendingFor])
  }
  if (filter.userId !== null) where.push(`${lead === 'r' ? 'r' : 'j'}.user_id = ${bind(filter.userId)}`)
  if (filter.queue !== null) where.push(`j.queue = ${bind(filter.queue)}`)
  if (filter.kind !== null) where.push(`j.kind = ${bind(filter.kind)}`)
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
  for (const table of path.slice(1)) where.push(`${ID[table]} = coalesce(${ID[lead]}, ${ID[lead]})`)
  const from = path.map((table) => `ichido.${TABLE[table]} ${table}`).join(' CROSS JOIN ')
  return `SELECT ${columns} FROM ${from} WHERE ${where.join(' AND ')} ORDER BY ${ID[lead]} DESC LIMIT ${limit}`
}

/**
 * A run that was due from the start waits for a worker, whatever the clock of its node shows. The time is a subquery, so that it
 * is read once and an index can be used.
 */
const DELAYED = '(r.run_at > j.created_at AND r.run_at > (SELECT now_ms()))'
const PENDING_FOR: Readonly<Record<PendingFor, string>> = {
  artifacts: `r.run_at >= ${HELD_MS}`,
  // The first two conditions, without `latest`, lead to the index of delayed runs.
  run_at: `w.state = 'PENDING' AND w.fair_tag IS NULL AND w.run_at > (SELECT now_ms()) AND w.run_at < ${HELD_MS}
    AND w.run_at > j.created_at AND w.id = r.id`,
  worker: `r.run_at < ${HELD_MS} AND NOT ${DELAYED}`,
}

type Alias = 'j' | 'r' | 'l' | 'k' | 'h' | 'w'
const TABLE: Record<Alias, string> = {
  j: 'jobs',
  r: 'runs',
  l: 'job_labels',
  k: 'idempotency_keys',
  h: 'held_runs',
  w: 'runs',
}
const ID: Record<Alias, string> = {
  j: 'j.id',
  r: 'r.job_id',
  l: 'l.job_id',
  k: 'k.job_id',
  h: 'h.job_id',
  w: 'w.job_id',
}

/** Few runs are in these states: workers hold them, or have just lost them. */
const FEW: readonly string[] = ['ASSIGNED', 'RUNNING', 'ORPHANED'] satisfies RunState[]

/** The table whose index fits the filter best. */
function leadOf(filter: JobFilter, state: string | null): Alias {
  if (filter.key !== null) return 'k'
  // Few PENDING jobs wait for artifacts or for their time.
  if (state === 'PENDING' && filter.pendingFor === 'artifacts') return 'h'
  if (state === 'PENDING' && filter.pendingFor === 'run_at') return 'w'
  if (state !== null && FEW.includes(state)) return 'r'
  if (filter.label !== null) return 'l'
  if (state === null) return 'j'
  // Most jobs have ended. A queue or a kind has fewer of them.
  const ended = (FINAL_STATES as readonly string[]).includes(state)
  return ended && filter.userId === null && (filter.queue ?? filter.kind) !== null ? 'j' : 'r'
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
