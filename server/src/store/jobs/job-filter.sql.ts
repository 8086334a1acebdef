import { UPLOAD_WAIT_MS } from '../../core/run/artifact.ts'
import type { SqlValue } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/** A PENDING job waits for its artifacts, for its `run_at`, or only for a worker. */
type PendingFor = 'artifacts' | 'run_at' | 'worker'

/** Selects jobs; a null field matches any. */
export interface JobFilter {
  states: readonly string[]
  /** Restricts PENDING jobs; null: all of them. */
  pendingFor: PendingFor | null
  userId: string | null
  queue: string | null
  kind: string | null
  label: { name: string; value: string } | null
  key: string | null
  /** The first 13 characters of the id, `…`, and its last characters. */
  shortId: string | null
  /** The code of the latest run's error. */
  errorCode: string | null
  /** Text in the kind, a label's value, the message of the latest run's error or a small payload; the case does not matter. */
  text: string | null
  /** Due for longer than this, and no worker has it. */
  waitingLongerThanMs: number | null
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
  shortId: null,
  errorCode: null,
  text: null,
  waitingLongerThanMs: null,
  createdFromMs: null,
  createdToMs: null,
}

/** The part of the ids that is looked at, and in which order. */
export interface Span {
  order: 'newest' | 'oldest'
  /** The job before the first one, in this order; null: none. */
  after: string | null
  /** The last job, in this order; null: none. */
  until: string | null
  /** The time that `waitingLongerThanMs` is counted from. */
  nowMs: number
}

/** No index serves these parts of a filter, so many jobs may have to be read for one that matches. */
export function isScanned({ errorCode, text, waitingLongerThanMs }: JobFilter): boolean {
  return errorCode !== null || text !== null || waitingLongerThanMs !== null
}

/**
 * An index leads to many jobs, and another part of the filter may exclude nearly all of them: the failed jobs of a queue that
 * never fails. Each job that is looked at costs a look-up or two.
 */
export function isNarrowed(filter: JobFilter): boolean {
  const { states, userId, queue, kind, label, key, shortId } = filter
  if (key !== null || shortId !== null) return false
  const parts = [userId, queue, kind, label].filter((part) => part !== null).length
  return (states.length === 0 ? [null] : states).some((state) => {
    const lead = leadOf(filter, state)
    if (state === 'ORPHANED' || lead === 'h' || lead === 'w') return false
    // Most jobs succeed, so that state excludes few.
    if (lead === 'j' || lead === 'l') return parts > 1 || !(state === null || state === 'SUCCEEDED')
    return parts > (userId === null ? 0 : 1)
  })
}

/** No job in another state has an error. */
const WITH_ERROR = ['RUNNING', 'FAILED', 'TIMED_OUT', 'CANCELED']
const WAITING = ['PENDING', 'ORPHANED']

/** The states that a job of the filter can have; null: any. */
export function statesOf({ states, errorCode, waitingLongerThanMs }: JobFilter): string[] | null {
  const limits = [states.length === 0 ? null : states, errorCode && WITH_ERROR, waitingLongerThanMs !== null && WAITING]
  const given = limits.filter((limit) => Array.isArray(limit))
  const [first, ...others] = given
  return first === undefined ? null : [...new Set(first)].filter((state) => others.every((one) => one.includes(state)))
}

type Bind = (value: SqlValue) => string

interface Query {
  sql: string
  params: SqlValue[]
}

/** A part for each state, so that each part uses an index. Each part has at most `limit` rows. Null: no state is possible. */
export function idsOf(filter: JobFilter, limit: number, span: Span): Query | null {
  return unionOf(filter, (state, bind) => partOf(filter, state, limit, span, bind))
}

/** The number of jobs in each state, and up to `max` of each. */
export function countsOf(filter: JobFilter, max: number, spanOf: (state: string) => Span): Query | null {
  return unionOf(filter, (state, bind) => {
    const part = partOf(filter, state, max, spanOf(state ?? ''), bind)
    return `SELECT CAST(${bind(state)} AS text) AS state, count(*) AS count FROM (${part}) AS listed`
  })
}

/** For each state, the job that ends the next `max` jobs which an index gives. A state with fewer of them has no row. */
export function endsOf(filter: JobFilter, max: number, span: Span): Query | null {
  return unionOf(filter, (state, bind) => {
    const lead = leadOf(filter, state)
    const where = [...indexed(filter, state, lead, bind), ...range(filter, lead, span, bind)]
    return `SELECT CAST(${bind(state ?? '')} AS text) AS state, ${ID[lead]} AS job_id FROM ichido.${TABLE[lead]} ${lead}
      ${where.length === 0 ? '' : `WHERE ${where.join(' AND ')}`} ${orderBy(lead, span)} LIMIT 1 OFFSET ${max - 1}`
  })
}

function unionOf(filter: JobFilter, part: (state: string | null, bind: Bind) => string): Query | null {
  const states = statesOf(filter) ?? [null]
  const params: SqlValue[] = []
  const bind = (value: SqlValue) => `$${params.push(value)}`
  const parts = states.map((state) => `SELECT * FROM (${part(state, bind)}) AS part`)
  return parts.length === 0 ? null : { sql: parts.join(' UNION ALL '), params }
}

const orderBy = (lead: Alias, { order }: Span) => `ORDER BY ${ID[lead]} ${order === 'newest' ? 'DESC' : 'ASC'}`

/** The conditions that one index of the leading table serves, beside the range of ids. */
function indexed(filter: JobFilter, state: string | null, lead: Alias, bind: Bind): string[] {
  const { userId, queue, kind, key, label } = filter
  const ofUser = () => (userId === null ? [] : [`${lead}.user_id = ${bind(userId)}`])
  switch (lead) {
    case 'k':
      return [`k.idempotency_key = ${bind(key)}`]
    case 'l':
      return label === null ? [] : [`l.name = ${bind(label.name)}`, `l.value = ${bind(label.value)}`]
    case 'h':
      return ofUser()
    case 'q':
      if (state === 'ORPHANED') return ['q.worker_id IS NOT NULL']
      // The second condition leads to the index ready_user.
      return userId === null ? [] : [...ofUser(), 'q.version > 0']
    case 'j':
      if (userId !== null) return ofUser()
      if (queue !== null) return [`j.queue = ${bind(queue)}`]
      return kind === null ? [] : [`j.kind = ${bind(kind)}`]
    case 'e':
      return state === null || state === 'SUCCEEDED' ? [] : [...ofUser(), inState('e', state, bind)]
    default:
      return []
  }
}

/** The smallest and the largest rest of an id, after its time. */
const FIRST_REST = '-0000-0000-000000000000'
const LAST_REST = '-ffff-ffff-ffffffffffff'

/**
 * The ids that are looked at. Of two lower bounds only the higher one is written: SQLite would begin at the other one, and read
 * a million jobs before the end of the span.
 */
function range(filter: JobFilter, lead: Alias, span: Span, bind: Bind): string[] {
  const { createdFromMs, createdToMs, waitingLongerThanMs, shortId } = filter
  const { order, after, until, nowMs } = span
  const where: string[] = []
  const [first, last] = order === 'newest' ? [until, after] : [after, until]
  const from = createdFromMs === null ? null : idAt(createdFromMs - SKEW_MS)
  if (from !== null && (first === null || from > first)) where.push(`${ID[lead]} >= ${bind(from)}`)
  else if (first !== null) where.push(`${ID[lead]} ${order === 'newest' ? '>=' : '>'} ${bind(first)}`)
  const toMs = Math.min(createdToMs ?? Infinity, waitingLongerThanMs === null ? Infinity : nowMs - waitingLongerThanMs)
  const to = toMs === Infinity ? null : idAt(toMs + SKEW_MS)
  if (to !== null && (last === null || to <= last)) where.push(`${ID[lead]} < ${bind(to)}`)
  else if (last !== null) where.push(`${ID[lead]} ${order === 'newest' ? '<' : '<='} ${bind(last)}`)
  if (shortId !== null) {
    // One millisecond of ids, so that few are read.
    const [begin = '', end = ''] = shortId.split('…')
    where.push(`${ID[lead]} >= ${bind(`${begin}${FIRST_REST}`)}`, `${ID[lead]} <= ${bind(`${begin}${LAST_REST}`)}`)
    where.push(`CAST(${ID[lead]} AS text) LIKE ${bind(`%${end}`)}`)
  }
  return where
}

function partOf(filter: JobFilter, state: string | null, limit: number, span: Span, bind: Bind): string {
  const where: string[] = []
  const lead = leadOf(filter, state)
  const room = state === null ? null : roomOf(state)
  const readsJob = needsJob(filter, state, lead)
  const path = [...new Set<Alias>([lead, ...(readsJob ? (['j'] as const) : []), ...(room === null ? [] : [room])])]
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
  if (filter.createdFromMs !== null) where.push(`j.created_at >= ${bind(filter.createdFromMs)}`)
  if (filter.createdToMs !== null) where.push(`j.created_at < ${bind(filter.createdToMs)}`)
  if (filter.waitingLongerThanMs !== null) {
    const since = bind(span.nowMs - filter.waitingLongerThanMs)
    where.push(`q.run_at < ${since}`, `q.created_at < ${since}`)
  }
  const error = errorIn(room)
  if (filter.errorCode !== null) where.push(`${member(error, 'code')} = ${bind(filter.errorCode)}`)
  if (filter.text !== null) where.push(`(${containing(filter.text, error, bind)})`)
  where.push(...range(filter, lead, span, bind))
  // Forces the join order: SQLite by CROSS JOIN, PostgreSQL by look-ups. Otherwise PostgreSQL would merge the two orders of ids: for
  // a user without new jobs, it would read all newer runs of other users. Or it would read whole tables for a count.
  const sameJob = (alias: Alias) => `by_key(${ID[alias]}, ${ID[lead]})`
  for (const alias of path.slice(1)) where.push(sameJob(alias))
  let from = path.map((alias) => `ichido.${TABLE[alias]} ${alias}`).join(' CROSS JOIN ')
  // Only ended jobs expire.
  if (room === null) from += ` LEFT JOIN ichido.ended e ON ${sameJob('e')} AND e.latest`
  if (readsJob && (room === null || room === 'e')) where.push(`NOT ${EXPIRED}`)
  else if (room === 'e')
    where.push(`(${NO_RESULTS_EXPIRE} OR NOT (SELECT ${EXPIRED} FROM ichido.jobs j WHERE j.id = e.job_id))`)
  return `SELECT ${ID[lead]} AS job_id FROM ${from} ${where.length === 0 ? '' : `WHERE ${where.join(' AND ')}`}
    ${orderBy(lead, span)} LIMIT ${limit}`
}

/** Mostly true, and then the jobs need not be read. */
const NO_RESULTS_EXPIRE = '(SELECT count(*) FROM ichido.queues WHERE result_ttl_seconds > 0) = 0'

/** False: the room of the run has all that the filter asks for, so a count looks up no jobs. */
function needsJob(filter: JobFilter, state: string | null, lead: Alias): boolean {
  if (state === null || lead !== roomOf(state)) return true
  const { pendingFor, queue, kind, text, createdFromMs, createdToMs } = filter
  const ofJob = [pendingFor, text, createdFromMs, createdToMs, ...(lead === 'e' ? [queue, kind] : [])]
  return ofJob.some((part) => part !== null)
}

/** A search does not read longer payloads: a payload may have 1 MiB, and SQLite reads all of it for its first character. */
const SEARCHED_PAYLOAD_BYTES_MAX = 4_096

/** Subqueries with one value: for EXISTS or a join PostgreSQL would read the whole table of labels. */
function containing(text: string, error: string | null, bind: Bind): string {
  const like = (column: string) => `${column} ILIKE ${bind(`%${escaped(text)}%`)} ESCAPE '!'`
  const places = [
    like('j.kind'),
    `coalesce((SELECT 1 FROM ichido.job_labels s WHERE s.job_id = j.id AND ${like('s.value')} LIMIT 1), 0) = 1`,
    `CASE WHEN octet_length(j.payload) <= ${SEARCHED_PAYLOAD_BYTES_MAX} THEN ${like('j.payload')} ELSE false END`,
  ]
  if (error !== null) places.push(`coalesce(${like(member(error, 'message'))}, false)`)
  return places.join(' OR ')
}

export function escaped(text: string): string {
  return text.replace(/[!%_]/g, '!$&')
}

/** The text for both engines. SQLite's LIKE ignores the case, as PostgreSQL's ILIKE does, and its `->>` takes text. */
export function forEngines(sql: string): { postgres: string; sqlite: string } {
  return { postgres: sql, sqlite: sql.replaceAll(' ILIKE ', ' LIKE ').replaceAll('::json', '') }
}

const member = (error: string | null, name: string) => (error === null ? 'NULL' : `(${error}::json ->> '${name}')`)

/** The error of the latest run; null: runs in this room have none. */
function errorIn(room: RoomAlias | null): string | null {
  if (room === null) return 'coalesce(e.error, (SELECT r.error FROM ichido.held r WHERE by_key(r.job_id, j.id)))'
  return room === 'q' ? null : `${room}.error`
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
  // Few jobs end without success, and a scan of all jobs of a queue would find few of them.
  if (state !== 'SUCCEEDED' && isScanned(filter)) return 'e'
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
