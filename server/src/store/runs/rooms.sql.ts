import { RUN_STATES } from '../../core/run/run-state.ts'

/**
 * Where is a job's run? In `ready` it may be leased, or will be. In `held` a worker has it. In `ended` it stays. A run changes
 * rooms by a delete and an insert in one transaction, so every statement sees it in exactly one room.
 */
export type Room = 'ready' | 'held' | 'ended'

export const state = { oneOf: RUN_STATES } as const

/** The columns of an alias. */
export const of = (alias: string, columns: string) => columns.replaceAll(/\w+/g, `${alias}.$&`)

/** A run in `ready` with a worker is an orphan: the worker had it, and did not start it. */
export const READY_STATE = (r: string) => `CASE WHEN ${r}.worker_id IS NULL THEN 'PENDING' ELSE 'ORPHANED' END`
export const HELD_STATE = (h: string) => `CASE WHEN ${h}.started_at IS NULL THEN 'ASSIGNED' ELSE 'RUNNING' END`

export const EPOCH = '(SELECT epoch FROM ichido.leadership WHERE id = 1)'

/** For a statement that may be a transaction by itself: its commit waits for the disk, whatever its session says. */
export const DURABLY_NOW = `(SELECT now_ms() FROM set_config('synchronous_commit', 'on', true))`

/** The columns that a run takes along from `ready` to `held` and back. */
const CARRIED = `job_id, run_id, run_no, queue, kind, user_id, retry_count, priority, run_at, fair_tag, created_at, definition_id`

export const READY = `${CARRIED}, attempt, version, n, bytes, lease_ttl_ms, continuation_ms, worker_id, token, assigned_at`
export const HELD = `${CARRIED}, attempt, version, n, worker_id, poll_id, token, assigned_at, lease_expires_at, lease_ttl_ms, continuation_ms,
  start_id, started_at, leader_epoch, deadline_at, cancel_requested_at, error`
const ENDED = `job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, fair_tag, created_at, worker_id, token,
  assigned_at, start_id, started_at, leader_epoch, lease_expires_at, cancel_requested_at, finished_at, n, outcome_hash, error`
/** With the events that PostgreSQL has no rows for. */
export const HELD_POSTGRES = `${HELD}, leased_n, leased_tx`
const ENDED_POSTGRES = `${ENDED}, leased_n, leased_tx, ended_n, ended_tx`

const NO_TEXT = 'CAST(NULL AS text)'
const NO_TIME = 'CAST(NULL AS bigint)'

/** PostgreSQL: the transaction, for an event that has no row in `events`. */
export const TX = '(SELECT pg_current_xact_id()::text::bigint)'

/** A time of the job's own policy in ms; null in most jobs. */
export const ofPolicy = {
  postgres: (policy: string, name: string) => `(nullif(${policy}, '{}')::json ->> '${name}')::bigint * 1000`,
  sqlite: (policy: string, name: string) => `json_extract(${policy}, '$.${name}') * 1000`,
}

/** The columns of `ready` that come from the job. With them, a lease reads only the jobs that it takes. */
export const OF_JOB = (engine: 'postgres' | 'sqlite', j: string) => `octet_length(${j}.payload),
  ${ofPolicy[engine](`${j}.policy`, 'lease_ttl_seconds')}, ${ofPolicy[engine](`${j}.policy`, 'continuation_seconds')}`

/** How a run ends. Each value is SQL. */
export interface End {
  state: string
  now: string
  outcomeHash?: string
  error?: string
}

/** The run `r` of a room as the row of `ended` that it becomes. */
function endedRow(room: 'ready' | 'held', r: string, end: End): string {
  const ofHeld = (column: string, none: string) => `${room === 'held' ? `${r}.${column}` : none} AS ${column}`
  return `${of(r, 'job_id, run_no, run_id, user_id')}, true AS latest, ${end.state} AS state, ${of(r, 'attempt, retry_count')},
        ${r}.version + 1 AS version, ${of(r, 'run_at, fair_tag, created_at, worker_id, token, assigned_at')}, ${ofHeld('start_id', NO_TEXT)},
        ${ofHeld('started_at', NO_TIME)}, ${ofHeld('leader_epoch', NO_TIME)}, ${ofHeld('lease_expires_at', NO_TIME)},
        ${ofHeld('cancel_requested_at', NO_TIME)}, ${end.now} AS finished_at, ${r}.n + 1 AS n,
        ${end.outcomeHash ?? NO_TEXT} AS outcome_hash, ${end.error ?? (room === 'held' ? `${r}.error` : NO_TEXT)} AS error`
}

/** A statement that moves runs answers with these columns. */
const MOVED = 'job_id, run_id, run_no, queue, kind, user_id, worker_id, state, attempt, retry_count, n'
export const MOVED_ROW = {
  job_id: 'text',
  run_id: 'text',
  run_no: 'integer',
  queue: 'text',
  kind: 'text',
  user_id: 'text',
  /** Null: no worker had the run. */
  worker_id: 'text?',
  state,
  attempt: 'integer',
  retry_count: 'integer',
  n: 'integer',
} as const

/**
 * PostgreSQL: writes an event for each run that `m` moved, in the statement that moves it. The domain is empty: readers take it
 * from the job. A lookup here cost 6 µs a move. A lease that starts its runs and an end need no such row: `event-sources.sql.ts`
 * has their events.
 */
export const MOVES_WRITTEN = `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT m.job_id, m.n, 'run', m.n, '', '{"state":"' || m.state || '","attempt":' || m.attempt || '}', (SELECT now_ms()) FROM m`

/** SQLite: the event of the run that the statement before this one has moved to a room. */
const moveWritten = (room: Room) => `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT m.job_id, m.n, 'run', m.n, '', '{"state":"' || ${stateIn(room, 'm')} || '","attempt":' || m.attempt || '}', now_ms()
      FROM ichido.${room} m WHERE ${arrived(room, 'm')}`

/** SQLite: the run of the job `$job_id` in a room, if the statement before this one changed a row. */
const arrived = (room: Room, m: string) =>
  `${m}.job_id = $job_id AND changes() = 1${room === 'ended' ? ` AND ${m}.latest` : ''}`

function stateIn(room: Room, r: string): string {
  if (room === 'ended') return `${r}.state`
  return room === 'held' ? HELD_STATE(r) : READY_STATE(r)
}

/** SQLite: writes the event of the run that the statement before this one has changed or inserted, and answers with the run. */
export const changed = (room: 'ready' | 'held', columns: string) => [
  moveWritten(room),
  `SELECT ${columns} FROM ichido.${room} m WHERE ${arrived(room, 'm')}`,
]

/** SQLite: inserts the run in its next room, takes it out of the room before, and answers with it. */
export function moveSqlite(from: 'ready' | 'held', to: Room, insert: string, more = ''): string[] {
  const ofJob = to === 'ended' ? of('j', 'queue, kind') : of('m', 'queue, kind')
  return [
    insert,
    `DELETE FROM ichido.${from} WHERE job_id = $job_id AND changes() = 1`,
    moveWritten(to),
    `SELECT ${of('m', 'job_id, run_id, run_no, user_id, worker_id, attempt, retry_count, n')}, ${ofJob}, ${stateIn(to, 'm')} AS state${more}
      FROM ichido.${to} m JOIN ichido.jobs j ON j.id = m.job_id WHERE ${arrived(to, 'm')}`,
  ]
}

/**
 * PostgreSQL: takes runs out of a room and ends them. `given` has the CTE `t`, if the condition and the end use its columns.
 * `more` has more columns of `m`, and `also` more parts of the statement that use them.
 */
export function endPostgres(form: {
  room: 'ready' | 'held'
  given?: string
  where: string
  end: End
  more?: string
  also?: string
  answer?: string
}): string {
  const { room, given, where, end, more = '', also = '', answer = `SELECT ${MOVED} FROM m` } = form
  const lease =
    room === 'held' ? 'r.leased_n, r.leased_tx' : `CAST(NULL AS integer) AS leased_n, ${NO_TIME} AS leased_tx`
  return `WITH ${given === undefined ? '' : `${given},`}
    m AS (DELETE FROM ichido.${room} r ${given === undefined ? '' : 'USING t'} WHERE ${where}
      RETURNING ${endedRow(room, 'r', end)}, ${lease}, r.n + 1 AS ended_n, ${TX} AS ended_tx, r.queue, r.kind${more}),
    x AS (INSERT INTO ichido.ended (${ENDED_POSTGRES}) SELECT ${ENDED_POSTGRES} FROM m)${also}
    ${answer}`
}

/** SQLite: the same for the job `$job_id`. */
export function endSqlite(room: 'ready' | 'held', where: string, end: End, more = ''): string[] {
  const insert = `INSERT INTO ichido.ended (${ENDED}) SELECT ${endedRow(room, 'r', end)} FROM ichido.${room} r WHERE ${where}`
  return moveSqlite(room, 'ended', insert, more)
}

/** The run `r` of `held` as an orphan in `ready`. Its job is `j`. */
function orphanRow(engine: 'postgres' | 'sqlite', r: string): string {
  return `${of(r, CARRIED)}, ${r}.attempt, ${r}.version + 1, ${r}.n + 1, ${OF_JOB(engine, 'j')}, ${of(r, 'worker_id, token, assigned_at')}`
}

/** PostgreSQL: takes unstarted runs back to `ready`. */
export function orphanPostgres(given: string, where: string): string {
  return `WITH ${given},
    d AS (DELETE FROM ichido.held r USING t WHERE ${where} AND r.started_at IS NULL RETURNING ${of('r', HELD)}),
    m AS (INSERT INTO ichido.ready (${READY}) SELECT ${orphanRow('postgres', 'd')} FROM d JOIN ichido.jobs j ON j.id = d.job_id
      RETURNING ${MOVED.replace('state', `'ORPHANED' AS state`)}),
    e AS (${MOVES_WRITTEN})
    SELECT ${MOVED} FROM m`
}

/** SQLite: the same for the job `$job_id`. */
export function orphanSqlite(where: string): string[] {
  const insert = `INSERT INTO ichido.ready (${READY}) SELECT ${orphanRow('sqlite', 'r')}
      FROM ichido.held r JOIN ichido.jobs j ON j.id = r.job_id WHERE ${where} AND r.started_at IS NULL`
  return moveSqlite('held', 'ready', insert)
}

/** A job `j`, with its latest run `e` if that has ended. */
export const JOB_AND_END = 'ichido.jobs j LEFT JOIN ichido.ended e ON e.job_id = j.id AND e.latest'

/** A job `j`, with its latest run in the room where it is: `q` in `ready`, `h` in `held`, `e` in `ended`. */
export const JOB_IN_ROOMS = `${JOB_AND_END}
    LEFT JOIN ichido.ready q ON by_key(q.job_id, j.id) LEFT JOIN ichido.held h ON by_key(h.job_id, j.id)`

/** The state of that run, and so of the job. */
export const STATE = `CASE WHEN e.job_id IS NOT NULL THEN e.state WHEN h.job_id IS NOT NULL THEN ${HELD_STATE('h')}
    WHEN q.job_id IS NOT NULL THEN ${READY_STATE('q')} END`

/** A column that runs have in all rooms. */
export const latest = (column: string) => `coalesce(q.${column}, h.${column}, e.${column})`

/** A column of runs that a worker has or had. */
export const sinceHeld = (column: string) => `coalesce(h.${column}, e.${column})`
