import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'
import { MOVED, MOVED_R, MOVED_ROW } from './runs.sql.ts'

/**
 * The leader's own writes to runs. `epoch` and `holder` are its term. `now` is the store's clock when the leader last compared it
 * with its own. A held run is the latest of its job: the condition leads to the index by state. In the order of ids, PostgreSQL
 * would read all runs.
 */

const POLICY = { postgres: '(j.policy::json ->> ', sqlite: 'json_extract(j.policy, ' }
const seconds = (name: string) => ({
  postgres: `${POLICY.postgres}'${name}')::float8`,
  sqlite: `${POLICY.sqlite}'$.${name}')`,
})
const TIMEOUT = seconds('timeout_seconds')

// The times that the worker was told, or a default for runs without them; in ms.
const continuationMs = (engine: 'postgres' | 'sqlite', fallback: string) =>
  `coalesce(r.continuation_ms, CAST(1000 * ${number(engine, fallback)} AS bigint))`
const leaseTtlMs = (engine: 'postgres' | 'sqlite', fallback: string) =>
  `CAST(coalesce(r.lease_ttl_ms, 1000 * ${number(engine, fallback)}) AS float)`

function number(engine: 'postgres' | 'sqlite', param: string): string {
  return engine === 'postgres' ? `${param}::float8` : param
}

const OF_RUN = 'JOIN ichido.jobs j ON j.id = r.job_id'

const NOW = 'CAST($now AS bigint)'

const UNSTARTED = `r.state = 'ASSIGNED' AND r.latest AND r.assigned_at <= ${NOW} - $reassign_after_ms
  AND (r.lease_expires_at < ${NOW} OR w.detached_at IS NOT NULL OR w.last_seen_at < ${NOW} - $unseen_ms)`

/** Assigned runs that did not start can be leased again. A worker counts as unseen after `unseen_ms`. */
export const orphanRuns = statement('orphan_runs', {
  params: { ...TERM, max: 'integer', now: 'integer', reassign_after_ms: 'integer', unseen_ms: 'integer' },
  row: MOVED_ROW,
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id FROM l CROSS JOIN ichido.runs r LEFT JOIN ichido.workers w ON w.worker_id = r.assigned_worker_id
      WHERE ${UNSTARTED} ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET state = 'ORPHANED', version = r.version + 1, last_event_n = r.last_event_n + 1
    FROM c WHERE r.id = c.id RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = 'ORPHANED', version = version + 1, last_event_n = last_event_n + 1
    WHERE ${LED_SQLITE} AND id IN (
      SELECT r.id FROM ichido.runs r LEFT JOIN ichido.workers w ON w.worker_id = r.assigned_worker_id
      WHERE ${UNSTARTED} LIMIT $max)
    RETURNING ${MOVED}`,
})

const HANDED_OUT = `r.attempt - coalesce(
  (SELECT p.attempt FROM ichido.runs p WHERE p.job_id = r.job_id AND p.run_no = r.run_no - 1), 0)`

/** Ends runs that were leased `handouts_max` times without a start. */
export const exhaustRuns = statement('exhaust_runs', {
  params: { ...TERM, max: 'integer', handouts_max: 'integer', error: 'text' },
  row: MOVED_ROW,
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id FROM l CROSS JOIN ichido.runs r
      WHERE r.state = 'ORPHANED' AND r.latest AND r.attempt >= $handouts_max AND ${HANDED_OUT} >= $handouts_max
      ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET state = 'FAILED', version = r.version + 1, finished_at = now_ms(), error = $error,
      last_event_n = r.last_event_n + 1
    FROM c WHERE r.id = c.id RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = 'FAILED', version = version + 1, finished_at = now_ms(), error = $error,
      last_event_n = last_event_n + 1
    WHERE ${LED_SQLITE} AND id IN (
      SELECT r.id FROM ichido.runs r
      WHERE r.state = 'ORPHANED' AND r.latest AND r.attempt >= $handouts_max AND ${HANDED_OUT} >= $handouts_max LIMIT $max)
    RETURNING ${MOVED}`,
})

const lapsed = (engine: 'postgres' | 'sqlite') => `r.state = 'RUNNING' AND r.latest AND r.continuation_state = 'NONE'
  AND r.lease_expires_at < ${NOW} AND ${leaseTtlMs(engine, '$lease_ttl_seconds')} <= $even_ms`

/**
 * The lease has expired, and the worker has time until the deadline. The state stays. The store's clock has gone evenly for
 * `even_ms`.
 */
export const confirmRuns = statement('confirm_runs', {
  params: {
    ...TERM,
    max: 'integer',
    now: 'integer',
    continuation_seconds: 'integer',
    even_ms: 'integer',
    lease_ttl_seconds: 'integer',
  },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id, ${continuationMs('postgres', '$continuation_seconds')} AS continuation_ms FROM l CROSS JOIN ichido.runs r
      WHERE ${lapsed('postgres')} ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET continuation_state = 'CONFIRMING',
      continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM c WHERE r.id = c.id RETURNING r.id`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM (SELECT r.id AS run_id, ${continuationMs('sqlite', '$continuation_seconds')} AS continuation_ms FROM ichido.runs r
      WHERE ${lapsed('sqlite')} LIMIT $max) c
    WHERE runs.id = c.run_id AND ${LED_SQLITE} RETURNING runs.id`,
})

const GRACE = 'CAST($grace_ms AS bigint)'
// Young runs are skipped before the policy of their job is read.
const overdue = (engine: 'postgres' | 'sqlite') => `r.state = 'RUNNING' AND r.latest AND r.continuation_state = 'NONE'
  AND r.started_at <= ${NOW} - ${GRACE} AND 1000 * ${TIMEOUT[engine]} + ${GRACE} <= ${NOW} - r.started_at
  AND 1000 * ${TIMEOUT[engine]} + ${GRACE} <= $even_ms`

/**
 * A run that has taken too long loses its lease. Its worker hears of it with the next heartbeat, and the run ends after the
 * continuation time. Within `grace_ms` the worker may end the run itself.
 */
export const haltRuns = statement('halt_runs', {
  params: {
    ...TERM,
    max: 'integer',
    now: 'integer',
    continuation_seconds: 'integer',
    even_ms: 'integer',
    grace_ms: 'integer',
    error: 'text',
  },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id, ${continuationMs('postgres', '$continuation_seconds')} AS continuation_ms FROM l CROSS JOIN ichido.runs r ${OF_RUN}
      WHERE ${overdue('postgres')}
      ORDER BY r.job_id LIMIT $max FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET continuation_state = 'CONFIRMING', lease_id = NULL, error = $error,
      continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM c WHERE r.id = c.id RETURNING r.id`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', lease_id = NULL, error = $error,
      continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM (SELECT r.id AS run_id, ${continuationMs('sqlite', '$continuation_seconds')} AS continuation_ms FROM ichido.runs r ${OF_RUN}
      WHERE ${overdue('sqlite')} LIMIT $max) c
    WHERE runs.id = c.run_id AND ${LED_SQLITE} RETURNING runs.id`,
})

/** RUNNING runs that the leader ends if their worker does not. */
export const readWaiting = statement('read_waiting', {
  params: { max: 'integer', continuation_seconds: 'integer' },
  row: {
    id: 'text',
    version: 'integer',
    cancel_requested_at: 'integer?',
    deadline_at: 'integer?',
    continuation_ms: 'integer',
  },
  postgres: waiting('postgres'),
  sqlite: waiting('sqlite'),
})

function waiting(engine: 'postgres' | 'sqlite'): string {
  return `SELECT r.id, r.version, r.cancel_requested_at,
      CASE WHEN r.continuation_state = 'CONFIRMING' THEN r.continuation_check_deadline_at END AS deadline_at,
      ${continuationMs(engine, '$continuation_seconds')} AS continuation_ms
    FROM ichido.runs r
    WHERE r.state = 'RUNNING' AND r.latest AND (r.continuation_state = 'CONFIRMING' OR r.cancel_requested_at IS NOT NULL)
    ORDER BY coalesce(r.continuation_check_deadline_at, r.cancel_requested_at), r.id LIMIT $max`
}

const SEEN = `(t.deadline_at IS NOT NULL AND r.continuation_state = 'CONFIRMING'
    AND r.continuation_check_deadline_at = t.deadline_at OR r.cancel_requested_at = t.cancel_requested_at)`

const ENDED = (r: string) => `state = CASE WHEN ${r}cancel_requested_at IS NULL THEN 'TIMED_OUT' ELSE 'CANCELED' END,
  version = ${r}version + 1, finished_at = now_ms(), continuation_state = 'NONE', continuation_check_deadline_at = NULL,
  error = CASE WHEN ${r}cancel_requested_at IS NOT NULL THEN ${r}error
    ELSE coalesce(${r}error, CASE WHEN ${r}lease_id IS NULL THEN $revoked_error ELSE $lost_error END) END,
  last_event_n = ${r}last_event_n + 1`

/**
 * `runs` is a JSON array of runs as they were seen (id, version, deadline_at, cancel_requested_at). The errors are those of a lost
 * and of a revoked worker. It guards all these values: a heartbeat since then has moved the deadline. The state is compared
 * where `t` is known: by itself, the condition would make PostgreSQL read all runs for the few that are RUNNING.
 */
export const expireRuns = statement('expire_runs', {
  params: { ...TERM, runs: 'text', lost_error: 'text', revoked_error: 'text' },
  row: { ...MOVED_ROW, error: 'text?' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id FROM l CROSS JOIN json_to_recordset($runs::json)
        AS t(id uuid, version integer, deadline_at bigint, cancel_requested_at bigint)
      JOIN ichido.runs r ON r.id = t.id
      WHERE r.state || left(t.id::text, 0) = 'RUNNING' AND r.version = t.version AND ${SEEN}
      FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET ${ENDED('r.')} FROM c WHERE r.id = c.id RETURNING ${MOVED_R}, r.error`,
  sqlite: `UPDATE ichido.runs SET ${ENDED('')} WHERE ${LED_SQLITE} AND id IN (
      SELECT r.id FROM (SELECT value ->> 'id' AS id, value ->> 'version' AS version, value ->> 'deadline_at' AS deadline_at,
          value ->> 'cancel_requested_at' AS cancel_requested_at FROM json_each($runs)) t
      JOIN ichido.runs r ON r.id = t.id WHERE r.state = 'RUNNING' AND r.version = t.version AND ${SEEN})
    RETURNING ${MOVED}, error`,
})

/** The time until the next lease expires, in ms; null when there is none. */
export const nextLapse = statement('next_lapse', {
  params: { now: 'integer' },
  row: { in_ms: 'integer?' },
  sql: `SELECT min(lease_expires_at) - CAST($now AS bigint) AS in_ms FROM ichido.runs
    WHERE state IN ('ASSIGNED', 'RUNNING') AND latest AND continuation_state = 'NONE'`,
})

/** A deadline in the past. */
export const PASSED = 0

/** Takes a prefix of worker ids. Their process is dead, so the leader need not wait for them. */
export const forsakeRuns = statement('forsake_runs', {
  params: { prefix: 'text' },
  row: { id: 'text' },
  sql: `UPDATE ichido.runs SET lease_expires_at = 0,
      continuation_state = CASE WHEN state = 'RUNNING' THEN 'CONFIRMING' ELSE continuation_state END,
      continuation_check_deadline_at = CASE WHEN state = 'RUNNING' THEN ${PASSED} END
    WHERE state IN ('ASSIGNED', 'RUNNING') AND assigned_worker_id LIKE $prefix || '%' RETURNING id`,
})
