import { HELD_MS } from '../../core/run/artifact.ts'
import { FINAL_STATES, type RunState } from '../../core/run/run-state.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { type SqlValue, select, type Work } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'
import { LISTED_COLUMNS, LISTED_ROW, type ListedJob } from './read-jobs.ts'

/** What a PENDING job waits for: its artifacts, its `run_at`, or nothing but a worker. */
export type PendingFor = 'artifacts' | 'run_at' | 'worker'

export interface JobFilter {
  states: readonly string[]
  /** Of the PENDING jobs only these; null: all of them. */
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
 * Newest first. Job ids are UUIDv7, so their order is the order of making, and a page is read off an index from where the
 * last one ended, however many jobs there are. The table whose index fits the filter best leads the join.
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

/** How many there are, counted up to `max`: a million jobs are never read for a number. */
export function countListed(filter: JobFilter, max: number): Command<number> {
  return command('count_listed', function* work(): Work<number> {
    const { sql, params } = unionOf(filter, 'j.id AS job_id', max, null)
    const text = `SELECT count(*) AS count FROM (${sql} LIMIT ${max}) AS listed`
    const [row] = yield* select({ count: 'integer' }, text, params)
    return row?.count ?? 0
  })
}

/** A part for each state, so that each is read off its index; at most `limit` rows of each. */
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
  // Both engines are held to this path: SQLite by CROSS JOIN, PostgreSQL by coalesce. It would else merge the two orders of
  // ids and, for a user who made nothing for a while, read all runs that others made since.
  for (const table of path.slice(1)) where.push(`${ID[table]} = coalesce(${ID[lead]}, ${ID[lead]})`)
  const from = path.map((table) => `ichido.${TABLE[table]} ${table}`).join(' CROSS JOIN ')
  return `SELECT ${columns} FROM ${from} WHERE ${where.join(' AND ')} ORDER BY ${ID[lead]} DESC LIMIT ${limit}`
}

/**
 * A run that was due from the start waits for a worker, whatever the clock of the node that made it. As a subquery the time is
 * read once, and can be looked up in an index.
 */
const DELAYED = '(r.run_at > j.created_at AND r.run_at > (SELECT now_ms()))'
const PENDING_FOR: Readonly<Record<PendingFor, string>> = {
  artifacts: `r.run_at >= ${HELD_MS}`,
  // The first two, and no `latest`, lead into the index of delayed runs.
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

/** There are never more of these than workers hold, or have just lost. */
const FEW: readonly string[] = ['ASSIGNED', 'RUNNING', 'ORPHANED'] satisfies RunState[]

/** The table whose index fits the filter best. */
function leadOf(filter: JobFilter, state: string | null): Alias {
  if (filter.key !== null) return 'k'
  // Few jobs wait for artifacts or for their time, whatever else is PENDING.
  if (state === 'PENDING' && filter.pendingFor === 'artifacts') return 'h'
  if (state === 'PENDING' && filter.pendingFor === 'run_at') return 'w'
  if (state !== null && FEW.includes(state)) return 'r'
  if (filter.label !== null) return 'l'
  if (state === null) return 'j'
  // Most jobs have ended: of those, the ones of a queue or kind are the fewer.
  const ended = (FINAL_STATES as readonly string[]).includes(state)
  return ended && filter.userId === null && (filter.queue ?? filter.kind) !== null ? 'j' : 'r'
}

/** An id carries the clock of the node that made it, created_at that of the store; they may differ by this much. */
const SKEW_MS = 3_600_000

/** The smallest UUIDv7 of an instant. */
export function idAt(ms: number): string {
  const hex = Math.min(Math.max(ms, 0), 2 ** 48 - 1)
    .toString(16)
    .padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
