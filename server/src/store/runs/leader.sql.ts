import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'
import { endPostgres, endSqlite, MOVED_ROW, orphanPostgres, orphanSqlite, state } from './rooms.sql.ts'
import { SORTED } from './runs.sql.ts'

/**
 * The leader's own writes to runs. `epoch` and `holder` are its term. `now` is the store's clock when the leader last compared it
 * with its own. A statement that locks runs checks all guards. The statement after it, in the same transaction, moves these runs.
 */

const NOW = 'CAST($now AS bigint)'

const UNSTARTED = `r.started_at IS NULL AND r.assigned_at <= ${NOW} - $reassign_after_ms
  AND (r.lease_expires_at < ${NOW} OR w.detached_at IS NOT NULL OR w.last_seen_at < ${NOW} - $unseen_ms)`
const OF_WORKER = 'LEFT JOIN ichido.workers w ON w.worker_id = r.worker_id'

/** Assigned runs that did not start in time. A worker counts as unseen after `unseen_ms`. */
export const lockUnstarted = statement('lock_unstarted', {
  params: { ...TERM, max: 'integer', now: 'integer', reassign_after_ms: 'integer', unseen_ms: 'integer' },
  row: { job_id: 'text' },
  postgres: `${LED} SELECT r.job_id FROM l CROSS JOIN ichido.held r ${OF_WORKER}
    WHERE ${UNSTARTED} ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED`,
  sqlite: `SELECT r.job_id FROM ichido.held r ${OF_WORKER} WHERE ${LED_SQLITE} AND ${UNSTARTED} LIMIT $max`,
})

const BY_JOB = 'by_key(r.job_id, t.job_id)'
const LOCKED = `t AS MATERIALIZED (SELECT t.job_id FROM unnest($job_id::uuid[]) AS t(job_id) ${SORTED})`

/** The runs are locked, or their worker is. They can be leased again. Guards that they have not started. */
export const orphanRuns = statement('orphan_runs', {
  params: { job_id: 'text' },
  row: MOVED_ROW,
  postgres: orphanPostgres(LOCKED, BY_JOB),
  sqlite: orphanSqlite('r.job_id = $job_id'),
})

const HANDED_OUT = `r.attempt - coalesce(
  (SELECT p.attempt FROM ichido.ended p WHERE p.job_id = r.job_id AND p.run_no = r.run_no - 1), 0)`
const EXHAUSTED = `r.worker_id IS NOT NULL AND r.attempt >= $handouts_max AND ${HANDED_OUT} >= $handouts_max`

/** Orphans that were leased `handouts_max` times without a start. */
export const lockExhausted = statement('lock_exhausted', {
  params: { ...TERM, max: 'integer', handouts_max: 'integer' },
  row: { job_id: 'text' },
  postgres: `${LED} SELECT r.job_id FROM l CROSS JOIN ichido.ready r
    WHERE ${EXHAUSTED} ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED`,
  sqlite: `SELECT r.job_id FROM ichido.ready r WHERE ${LED_SQLITE} AND ${EXHAUSTED} LIMIT $max`,
})

const ENDS = { job_id: 'text', state, error: 'text?' } as const
const ENDING = `t AS MATERIALIZED (
      SELECT t.* FROM unnest($job_id::uuid[], $state::text[], $error::text[]) AS t(job_id, state, error) ${SORTED})`
const endWith = (given: string, error: string) => ({ state: `${given}state`, now: 'now_ms()', error })

/** Ends runs that no worker has. The delete guards that each is still in `ready`. */
export const endReady = statement('end_ready', {
  params: ENDS,
  row: MOVED_ROW,
  postgres: endPostgres({ room: 'ready', given: ENDING, where: BY_JOB, end: endWith('t.', 't.error') }),
  sqlite: endSqlite('ready', 'r.job_id = $job_id', endWith('$', '$error')),
})

/** Ends held runs that are locked. Without an error, a run keeps the error that it has. */
export const endHeld = statement('end_held', {
  params: ENDS,
  row: MOVED_ROW,
  postgres: endPostgres({
    room: 'held',
    given: ENDING,
    where: BY_JOB,
    end: endWith('t.', 'coalesce(t.error, r.error)'),
  }),
  sqlite: endSqlite('held', 'r.job_id = $job_id', endWith('$', 'coalesce($error, r.error)')),
})

const LAPSED = `r.started_at IS NOT NULL AND r.deadline_at IS NULL AND r.lease_expires_at < ${NOW} AND r.lease_ttl_ms <= $even_ms`

/**
 * The lease has expired, and the worker has time until the deadline. The state stays. The store's clock has gone evenly for
 * `even_ms`.
 */
export const confirmRuns = statement('confirm_runs', {
  params: { ...TERM, max: 'integer', now: 'integer', even_ms: 'integer' },
  row: { job_id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.job_id FROM l CROSS JOIN ichido.held r
      WHERE ${LAPSED} ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.held r SET deadline_at = ${NOW} + r.continuation_ms FROM c WHERE by_key(r.job_id, c.job_id) RETURNING r.job_id`,
  sqlite: `UPDATE ichido.held SET deadline_at = ${NOW} + continuation_ms
    WHERE ${LED_SQLITE} AND job_id IN (SELECT r.job_id FROM ichido.held r WHERE ${LAPSED} LIMIT $max) RETURNING job_id`,
})

const GRACE = 'CAST($grace_ms AS bigint)'
const TIMEOUT = {
  postgres: `(j.policy::json ->> 'timeout_seconds')::float8`,
  sqlite: `json_extract(j.policy, '$.timeout_seconds')`,
}
// Young runs are skipped before the policy of their job is read.
const overdue = (engine: 'postgres' | 'sqlite') => `r.started_at IS NOT NULL AND r.deadline_at IS NULL
  AND r.started_at <= ${NOW} - ${GRACE} AND 1000 * ${TIMEOUT[engine]} + ${GRACE} <= ${NOW} - r.started_at
  AND 1000 * ${TIMEOUT[engine]} + ${GRACE} <= $even_ms`
const OF_JOB = 'JOIN ichido.jobs j ON j.id = r.job_id'

/**
 * A run that has taken too long loses its lease. Its worker hears of it with the next heartbeat, and the run ends after the
 * continuation time. Within `grace_ms` the worker may end the run itself.
 */
export const haltRuns = statement('halt_runs', {
  params: { ...TERM, max: 'integer', now: 'integer', even_ms: 'integer', grace_ms: 'integer', error: 'text' },
  row: { job_id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.job_id FROM l CROSS JOIN ichido.held r ${OF_JOB}
      WHERE ${overdue('postgres')} ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.held r SET token = NULL, error = $error, deadline_at = ${NOW} + r.continuation_ms
    FROM c WHERE by_key(r.job_id, c.job_id) RETURNING r.job_id`,
  sqlite: `UPDATE ichido.held SET token = NULL, error = $error, deadline_at = ${NOW} + continuation_ms
    WHERE ${LED_SQLITE} AND job_id IN (SELECT r.job_id FROM ichido.held r ${OF_JOB} WHERE ${overdue('sqlite')} LIMIT $max)
    RETURNING job_id`,
})

/** RUNNING runs that the leader ends if their worker does not. */
export const readWaiting = statement('read_waiting', {
  params: { max: 'integer' },
  row: {
    job_id: 'text',
    version: 'integer',
    cancel_requested_at: 'integer?',
    deadline_at: 'integer?',
    continuation_ms: 'integer',
  },
  sql: `SELECT job_id, version, cancel_requested_at, deadline_at, continuation_ms FROM ichido.held
    WHERE started_at IS NOT NULL AND (deadline_at IS NOT NULL OR cancel_requested_at IS NOT NULL)
    ORDER BY coalesce(deadline_at, cancel_requested_at), job_id LIMIT $max`,
})

const SEEN = `r.started_at IS NOT NULL AND r.version = t.version
  AND (r.deadline_at = t.deadline_at OR r.cancel_requested_at = t.cancel_requested_at)`

/**
 * `runs` is a JSON array of runs as they were seen (job_id, version, deadline_at, cancel_requested_at). It guards all these values:
 * a heartbeat since then has moved the deadline.
 */
export const lockExpired = statement('lock_expired', {
  params: { ...TERM, runs: 'text' },
  row: { job_id: 'text', token: 'text?', cancel_requested_at: 'integer?', error: 'text?' },
  postgres: `${LED} SELECT r.job_id, r.token, r.cancel_requested_at, r.error FROM l CROSS JOIN json_to_recordset($runs::json)
      AS t(job_id uuid, version integer, deadline_at bigint, cancel_requested_at bigint)
    JOIN ichido.held r ON by_key(r.job_id, t.job_id) WHERE ${SEEN} FOR UPDATE OF r SKIP LOCKED`,
  sqlite: `SELECT r.job_id, r.token, r.cancel_requested_at, r.error
    FROM (SELECT value ->> 'job_id' AS job_id, value ->> 'version' AS version, value ->> 'deadline_at' AS deadline_at,
        value ->> 'cancel_requested_at' AS cancel_requested_at FROM json_each($runs)) t
    JOIN ichido.held r ON by_key(r.job_id, t.job_id) WHERE ${LED_SQLITE} AND ${SEEN}`,
})

/** The time until the next lease expires, in ms; null when there is none. */
export const nextLapse = statement('next_lapse', {
  params: { now: 'integer' },
  row: { in_ms: 'integer?' },
  sql: `SELECT min(lease_expires_at) - ${NOW} AS in_ms FROM ichido.held WHERE deadline_at IS NULL`,
})

/** A deadline in the past. */
export const PASSED = 0

/** Takes a prefix of worker ids. Their process is dead, so the leader need not wait for them. */
export const forsakeRuns = statement('forsake_runs', {
  params: { prefix: 'text' },
  row: { job_id: 'text' },
  sql: `UPDATE ichido.held SET lease_expires_at = 0,
      deadline_at = CASE WHEN started_at IS NULL THEN deadline_at ELSE ${PASSED} END
    WHERE worker_id LIKE $prefix || '%' RETURNING job_id`,
})
