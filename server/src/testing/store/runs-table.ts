import { createHash } from 'node:crypto'
import { ALL_EVENTS } from '../../store/events/event-sources.sql.ts'
import { HELD_STATE, READY_STATE } from '../../store/runs/rooms.sql.ts'
import { type Row, type SqlValue, type Statement, unnamed, type Work } from '../../store/statement.ts'

/**
 * Tests look at runs, and change them, as if they were in one table `ichido.runs`, whichever room they are in. They read events as if
 * all were rows of `ichido.events`. Only `sql()` does this.
 */

const NO_TEXT = 'CAST(NULL AS text)'
const NO_TIME = 'CAST(NULL AS bigint)'

type Rooms = { ready: string | null; held: string | null; ended: string | null }

/** The columns of the table, and their names or values in each room. */
const COLUMNS: Record<string, Rooms> = {
  id: same('run_id'),
  run_id: same('run_id'),
  worker_id: same('worker_id'),
  ...Object.fromEntries(
    [
      'job_id',
      'run_no',
      'user_id',
      'attempt',
      'retry_count',
      'version',
      'run_at',
      'fair_tag',
      'created_at',
      'token',
    ].map((name) => [name, same(name)]),
  ),
  latest: { ready: 'true', held: 'true', ended: 'r.latest' },
  queue: { ready: 'r.queue', held: 'r.queue', ended: 'j.queue' },
  kind: { ready: 'r.kind', held: 'r.kind', ended: 'j.kind' },
  priority: { ready: 'r.priority', held: 'r.priority', ended: 'j.priority' },
  definition_id: { ready: 'r.definition_id', held: 'r.definition_id', ended: 'j.definition_id' },
  state: { ready: READY_STATE('r'), held: HELD_STATE('r'), ended: 'r.state' },
  assigned_worker_id: same('worker_id'),
  assigned_at: same('assigned_at'),
  poll_id: { ready: NO_TEXT, held: 'r.poll_id', ended: NO_TEXT },
  lease_id: {
    ready: "CAST(r.job_id AS text) || '.' || r.token",
    held: "CAST(r.job_id AS text) || '.' || r.token",
    ended: "CAST(r.job_id AS text) || '.' || r.token",
  },
  lease_expires_at: { ready: NO_TIME, held: 'r.lease_expires_at', ended: 'r.lease_expires_at' },
  lease_ttl_ms: { ready: 'r.lease_ttl_ms', held: 'r.lease_ttl_ms', ended: NO_TIME },
  continuation_ms: { ready: 'r.continuation_ms', held: 'r.continuation_ms', ended: NO_TIME },
  leader_epoch: { ready: NO_TIME, held: 'r.leader_epoch', ended: 'r.leader_epoch' },
  start_id: { ready: NO_TEXT, held: 'r.start_id', ended: 'r.start_id' },
  started_at: { ready: NO_TIME, held: 'r.started_at', ended: 'r.started_at' },
  finished_at: { ready: NO_TIME, held: NO_TIME, ended: 'r.finished_at' },
  continuation_state: {
    ready: "'NONE'",
    held: "CASE WHEN r.deadline_at IS NULL THEN 'NONE' ELSE 'CONFIRMING' END",
    ended: "'NONE'",
  },
  continuation_check_deadline_at: { ready: NO_TIME, held: 'r.deadline_at', ended: NO_TIME },
  cancel_requested_at: { ready: NO_TIME, held: 'r.cancel_requested_at', ended: 'r.cancel_requested_at' },
  last_event_n: same('n'),
  outcome_hash: { ready: NO_TEXT, held: NO_TEXT, ended: 'r.outcome_hash' },
  error: { ready: NO_TEXT, held: 'r.error', ended: 'r.error' },
  leased_n: { ready: NO_TIME, held: 'r.leased_n', ended: 'r.leased_n' },
  leased_tx: { ready: NO_TIME, held: 'r.leased_tx', ended: 'r.leased_tx' },
  ended_n: { ready: NO_TIME, held: NO_TIME, ended: 'r.ended_n' },
  ended_tx: { ready: NO_TIME, held: NO_TIME, ended: 'r.ended_tx' },
}

function same(column: string): Rooms {
  return { ready: `r.${column}`, held: `r.${column}`, ended: `r.${column}` }
}

const ROOMS = ['ready', 'held', 'ended'] as const
type Room = (typeof ROOMS)[number]

const inRoom = (room: Room) => {
  const columns = Object.entries(COLUMNS).map(([name, rooms]) => `${rooms[room]} AS ${name}`)
  return `SELECT ${columns.join()} FROM ichido.${room} r LEFT JOIN ichido.jobs j ON j.id = r.job_id`
}

const RUNS = ROOMS.map(inRoom).join(' UNION ALL ')

const ALIAS = '(?:\\s+(?!WHERE\\b|JOIN\\b|LEFT\\b|CROSS\\b|ORDER\\b|GROUP\\b|LIMIT\\b|ON\\b|FOR\\b|SET\\b)([a-z]\\w*))?'
const RUNS_READ = new RegExp(`\\bichido\\.runs\\b${ALIAS}`, 'g')
const EVENTS_READ = new RegExp(`\\bichido\\.events\\b${ALIAS}`, 'g')

/** The text with every `ichido.runs` that is read replaced. */
function readingRuns(text: string): string {
  return text.replaceAll(RUNS_READ, (_, name: string | undefined) => `(${RUNS}) AS ${name ?? 'runs'}`)
}

/** The same for `ichido.events`: on PostgreSQL some events have no row of their own. */
function readingEvents(text: string): { postgres: string; sqlite: string } {
  if (!/^\s*(SELECT|WITH)\b/.test(text)) return { postgres: text, sqlite: text }
  const all = (_: string, name: string | undefined) => `${ALL_EVENTS.postgres} AS ${name ?? 'events'}`
  return { postgres: text.replaceAll(EVENTS_READ, all), sqlite: text }
}

/** Only PostgreSQL has events without rows. */
const onPostgres = (postgres: string) => ({ postgres, sqlite: 'SELECT 1' })

/** Removes the events of a job before a number, as retention does. */
export function* removeEvents(jobId: string, before: number): Work<void> {
  for (const text of [
    'DELETE FROM ichido.events WHERE job_id = $1 AND n < $2',
    onPostgres('UPDATE ichido.ended SET leased_n = NULL, leased_tx = NULL WHERE job_id = $1 AND leased_n < $2'),
    onPostgres('UPDATE ichido.ended SET ended_n = NULL, ended_tx = NULL WHERE job_id = $1 AND ended_n < $2'),
  ])
    yield { kind: 'query', statement: unnamed(text), params: [jobId, before] }
}

const kept = new Map<string, Statement>()

/** Has a name, so that PostgreSQL plans it once: to plan a look into all rooms takes longer than the look. */
function named(text: string | { postgres: string; sqlite: string }): Statement {
  const { postgres, sqlite } = typeof text === 'string' ? { postgres: text, sqlite: text } : text
  const made = unnamed({ postgres, sqlite: sqlite.replaceAll(/\br\.(leased|ended)_(n|tx)\b/g, 'NULL') })
  const statement = kept.get(made.postgres) ?? {
    ...made,
    name: `test_${createHash('sha1').update(made.postgres).digest('hex')}`,
  }
  kept.set(made.postgres, statement)
  return statement
}

/** Carries out any text but a change of runs. */
export function* otherThanChange(text: string, params: readonly SqlValue[]): Work<Row[]> {
  const reading = readingEvents(readingRuns(text))
  return yield { kind: 'query', statement: reading.postgres === text ? unnamed(text) : named(reading), params }
}

const DELETE = /^\s*DELETE FROM ichido\.runs(?: WHERE (.*?))?\s*$/s

/** Carries out `DELETE FROM ichido.runs WHERE …`. */
function* deleteRuns(where: string, params: readonly SqlValue[]): Work<Row[]> {
  const text = readingRuns(
    `SELECT job_id AS was_job_id, run_no AS was_run_no, state AS was_state FROM ichido.runs WHERE ${where}`,
  )
  const rows = yield { kind: 'query', statement: named(text), params }
  for (const row of rows) yield* removeRun(row)
  return []
}

function* removeRun({ was_job_id = null, was_run_no = null, was_state }: Row): Work<void> {
  const text = `DELETE FROM ichido.${roomOf(was_state)} WHERE job_id = $1 AND run_no = $2`
  yield { kind: 'query', statement: named(text), params: [was_job_id, was_run_no] }
}

const UPDATE = /^\s*UPDATE ichido\.runs(?: AS)?(?: r)? SET (.*?) WHERE (.*?)(?: RETURNING .*)?$/s

export const changesRuns = (text: string) => /^\s*(UPDATE|DELETE FROM) ichido\.runs\b/.test(text)

/** Carries out a DELETE, or `UPDATE ichido.runs SET … WHERE …`. A run that gets another state goes to the room of that state. */
export function* changeRuns(text: string, params: readonly SqlValue[]): Work<Row[]> {
  const deleted = DELETE.exec(text)
  if (deleted !== null) return yield* deleteRuns(deleted[1] ?? 'true', params)
  const whole = UPDATE.exec(/\bWHERE\b/.test(text) ? text : `${text} WHERE true`)
  if (whole === null) throw new Error(`This is not a change of runs: ${text}`)
  const [, set = '', where = ''] = whole
  const changes = new Map(
    splitTop(set).map((part) => part.split(/\s*=\s*(.*)/s).map((s) => s.trim()) as [string, string]),
  )
  const columns = Object.keys(COLUMNS).map((name) => `${changes.get(name) ?? `r.${name}`} AS ${name}`)
  const was = 'r.job_id AS was_job_id, r.run_no AS was_run_no, r.state AS was_state'
  const from = readingRuns(`ichido.runs r WHERE ${where}`)
  const rows = yield { kind: 'query', statement: named(`SELECT ${columns.join()}, ${was} FROM ${from}`), params }
  for (const row of rows) yield* putRun(row, changes.has('lease_id') ? tokenIn(row.lease_id) : row.token)
  return rows
}

const tokenIn = (leaseId: SqlValue | undefined) =>
  typeof leaseId === 'string' ? leaseId.slice(leaseId.indexOf('.') + 1) : null

/** Splits at commas that are not in parentheses or quotes. */
function splitTop(text: string): string[] {
  const parts = ['']
  let [depth, quoted] = [0, false]
  for (const char of text) {
    if (char === "'") quoted = !quoted
    if (!quoted && char === '(') depth++
    if (!quoted && char === ')') depth--
    if (char === ',' && depth === 0 && !quoted) parts.push('')
    else parts[parts.length - 1] += char
  }
  return parts
}

function roomOf(state: SqlValue | undefined): Room {
  if (state === 'PENDING' || state === 'ORPHANED') return 'ready'
  return state === 'ASSIGNED' || state === 'RUNNING' ? 'held' : 'ended'
}

function* putRun(row: Row, token: SqlValue | undefined): Work<void> {
  const room = roomOf(row.state)
  yield* removeRun(row)
  const had = row.state !== 'PENDING'
  const common: Record<string, SqlValue | undefined> = {
    job_id: row.job_id,
    run_id: row.id,
    run_no: row.run_no,
    user_id: row.user_id,
    attempt: row.attempt,
    retry_count: row.retry_count,
    version: row.version,
    run_at: row.run_at,
    fair_tag: row.fair_tag,
    created_at: row.created_at,
    n: row.last_event_n,
    worker_id: had ? (row.assigned_worker_id ?? (room === 'ended' ? null : 'nobody')) : null,
    token: had ? token : null,
    assigned_at: had ? row.assigned_at : null,
  }
  const live = { queue: row.queue, kind: row.kind, priority: row.priority, definition_id: row.definition_id }
  const since = { start_id: row.start_id, leader_epoch: row.leader_epoch, cancel_requested_at: row.cancel_requested_at }
  const values: Record<Room, Record<string, SqlValue | undefined>> = {
    ready: { ...common, ...live, bytes: 1, lease_ttl_ms: row.lease_ttl_ms, continuation_ms: row.continuation_ms },
    held: {
      ...common,
      ...live,
      ...since,
      assigned_at: row.assigned_at ?? row.created_at,
      poll_id: row.poll_id,
      lease_expires_at: row.lease_expires_at ?? 0,
      lease_ttl_ms: row.lease_ttl_ms ?? 60_000,
      continuation_ms: row.continuation_ms ?? 60_000,
      started_at: row.state === 'RUNNING' ? (row.started_at ?? row.created_at) : null,
      deadline_at: row.continuation_state === 'CONFIRMING' ? (row.continuation_check_deadline_at ?? 0) : null,
      error: row.error,
    },
    ended: {
      ...common,
      ...since,
      latest: row.latest,
      state: row.state,
      started_at: row.started_at,
      lease_expires_at: row.lease_expires_at,
      finished_at: row.finished_at ?? row.created_at,
      outcome_hash: row.outcome_hash,
      error: row.error,
    },
  }
  const entries = Object.entries(values[room])
  const names = entries.map(([name]) => name).join()
  const places = entries.map((_, i) => `$${i + 1}`).join()
  const text = `INSERT INTO ichido.${room} (${names}) VALUES (${places})`
  yield { kind: 'query', statement: named(text), params: entries.map(([, value]) => value ?? null) }
  const told = { ready: [], held: ['leased_n', 'leased_tx'], ended: ['leased_n', 'leased_tx', 'ended_n', 'ended_tx'] }[
    room
  ]
  if (told.every((name) => row[name] === null)) return
  const set = told.map((name, i) => `${name} = $${i + 3}`).join()
  const tell = onPostgres(`UPDATE ichido.${room} SET ${set} WHERE job_id = $1 AND run_no = $2`)
  const params = [row.job_id ?? null, row.run_no ?? null, ...told.map((name) => row[name] ?? null)]
  yield { kind: 'query', statement: unnamed(tell), params }
}
