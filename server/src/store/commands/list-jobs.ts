import { type Command, command } from '../port.ts'
import { JOB_COLUMNS } from '../sql/jobs.ts'
import { query, type Row, type SqlValue, statement, text, type Work } from '../statement.ts'

export interface JobFilter {
  states: readonly string[]
  userId: string | null
  queue: string | null
  kind: string | null
  label: { name: string; value: string } | null
  key: string | null
  createdFromMs: number | null
  createdToMs: number | null
}

export interface Listed<T> {
  rows: T[]
  /** The place to go on from; null at the end. */
  next: string | null
}

/**
 * Newest first. Job ids are UUIDv7, so their order is the order of making, and a page is read off an index from where the
 * last one ended, however many jobs there are. The table whose index fits the filter best leads the join.
 */
export function listJobs(filter: JobFilter, limit: number, after: string | null): Command<Listed<Row>> {
  return command('list_jobs', function* work(): Work<Listed<Row>> {
    const states = filter.states.length === 0 ? [null] : [...new Set(filter.states)]
    const params: SqlValue[] = []
    const bind = (value: SqlValue) => `$${params.push(value)}`
    const parts = states.map((state) => `SELECT * FROM (${pageOf(filter, state, limit + 1, after, bind)}) AS page`)
    const sql = `${parts.join(' UNION ALL ')} ORDER BY job_id DESC LIMIT ${limit + 1}`
    const rows = yield* query(statement('', sql), ...params)
    const page = rows.slice(0, limit)
    return { rows: page, next: rows.length > limit ? text(page.at(-1), 'job_id') : null }
  })
}

function pageOf(
  filter: JobFilter,
  state: string | null,
  limit: number,
  after: string | null,
  bind: (value: SqlValue) => string,
): string {
  const where = ['j.id = r.job_id', 'r.latest']
  let from = ['ichido.jobs j', 'ichido.runs r']
  let lead = 'j.id'
  if (state !== null) {
    where.push(`r.state = ${bind(state)}`)
    from = ['ichido.runs r', 'ichido.jobs j']
    lead = 'r.job_id'
  }
  if (filter.userId !== null) where.push(`${state === null ? 'j' : 'r'}.user_id = ${bind(filter.userId)}`)
  if (filter.queue !== null) where.push(`j.queue = ${bind(filter.queue)}`)
  if (filter.kind !== null) where.push(`j.kind = ${bind(filter.kind)}`)
  if (filter.label !== null) {
    from = ['ichido.job_labels l', 'ichido.jobs j', 'ichido.runs r']
    lead = 'l.job_id'
    where.push('j.id = l.job_id', `l.name = ${bind(filter.label.name)}`, `l.value = ${bind(filter.label.value)}`)
  }
  if (filter.key !== null) {
    from = ['ichido.idempotency_keys k', ...from]
    lead = 'k.job_id'
    where.push('j.id = k.job_id', `k.idempotency_key = ${bind(filter.key)}`)
  }
  // Said of every table: a merge join would else begin at the newest row, and read all pages before this one again.
  const bound = (comparison: '<' | '>=', id: string) => {
    const param = bind(id)
    for (const column of new Set([lead, 'j.id', 'r.job_id'])) where.push(`${column} ${comparison} ${param}`)
  }
  if (filter.createdFromMs !== null) {
    where.push(`j.created_at >= ${bind(filter.createdFromMs)}`)
    bound('>=', idAt(filter.createdFromMs - SKEW_MS))
  }
  if (filter.createdToMs !== null) {
    where.push(`j.created_at < ${bind(filter.createdToMs)}`)
    bound('<', idAt(filter.createdToMs + SKEW_MS))
  }
  if (after !== null) bound('<', after)
  // CROSS JOIN holds SQLite to this order; PostgreSQL chooses its own.
  return `SELECT ${JOB_COLUMNS} FROM ${from.join(' CROSS JOIN ')} WHERE ${where.join(' AND ')} ORDER BY ${lead} DESC LIMIT ${limit}`
}

/** An id carries the clock of the node that made it, created_at that of the store; they may differ by this much. */
const SKEW_MS = 3_600_000

/** The smallest UUIDv7 of an instant. */
function idAt(ms: number): string {
  const hex = Math.min(Math.max(ms, 0), 2 ** 48 - 1)
    .toString(16)
    .padStart(12, '0')
  return `${hex.slice(0, 8)}-${hex.slice(8)}-7000-8000-000000000000`
}
