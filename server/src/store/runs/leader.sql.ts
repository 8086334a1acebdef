import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'
import { MOVED, MOVED_R } from './runs.sql.ts'

/**
 * What the leader does to runs by itself. In all of these $1 and $2 are its term, and `now` is what the store's clock showed
 * when the leader last compared it with its own. A run that workers hold is its job's latest: saying so leads to the index by
 * state. By the order of ids all runs would be read.
 */

const POLICY = { postgres: '(j.policy::json ->> ', sqlite: 'json_extract(j.policy, ' }
const seconds = (name: string) => ({
  postgres: `${POLICY.postgres}'${name}')::float8`,
  sqlite: `${POLICY.sqlite}'$.${name}')`,
})
const TIMEOUT = seconds('timeout_seconds')

// What the worker was told, or for runs that do not know theirs the default; in ms.
const continuationMs = (engine: 'postgres' | 'sqlite', fallback: string) =>
  `coalesce(r.continuation_ms, CAST(1000 * ${number(engine, fallback)} AS bigint))`
const leaseTtlMs = (engine: 'postgres' | 'sqlite', fallback: string) =>
  `CAST(coalesce(r.lease_ttl_ms, 1000 * ${number(engine, fallback)}) AS float)`

function number(engine: 'postgres' | 'sqlite', param: string): string {
  return engine === 'postgres' ? `${param}::float8` : param
}

const OF_RUN = 'JOIN ichido.jobs j ON j.id = r.job_id'

const NOW = 'CAST($4 AS bigint)'

const UNSTARTED = `r.state = 'ASSIGNED' AND r.latest AND r.assigned_at <= ${NOW} - $5
  AND (r.lease_expires_at < ${NOW} OR w.detached_at IS NOT NULL OR w.last_seen_at < ${NOW} - $6)`

/**
 * Takes a maximum, now, `reassign_after` and the time until a worker counts as unseen. Assigned runs that did not start go
 * to the next worker that asks.
 */
export const orphanRuns = statement('orphan_runs', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id FROM l CROSS JOIN ichido.runs r LEFT JOIN ichido.workers w ON w.worker_id = r.assigned_worker_id
      WHERE ${UNSTARTED} ORDER BY r.job_id LIMIT $3 FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET state = 'ORPHANED', version = r.version + 1, last_event_n = r.last_event_n + 1
    FROM c WHERE r.id = c.id RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = 'ORPHANED', version = version + 1, last_event_n = last_event_n + 1
    WHERE ${LED_SQLITE} AND id IN (
      SELECT r.id FROM ichido.runs r LEFT JOIN ichido.workers w ON w.worker_id = r.assigned_worker_id
      WHERE ${UNSTARTED} LIMIT $3)
    RETURNING ${MOVED}`,
})

const HANDED_OUT = `r.attempt - coalesce(
  (SELECT p.attempt FROM ichido.runs p WHERE p.job_id = r.job_id AND p.run_no = r.run_no - 1), 0)`

/** Takes a maximum, how often a run may be handed out without starting, and the error. Nobody is left to try it. */
export const exhaustRuns = statement('exhaust_runs', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id FROM l CROSS JOIN ichido.runs r
      WHERE r.state = 'ORPHANED' AND r.latest AND r.attempt >= $4 AND ${HANDED_OUT} >= $4
      ORDER BY r.job_id LIMIT $3 FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET state = 'FAILED', version = r.version + 1, finished_at = now_ms(), error = $5,
      last_event_n = r.last_event_n + 1
    FROM c WHERE r.id = c.id RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = 'FAILED', version = version + 1, finished_at = now_ms(), error = $5,
      last_event_n = last_event_n + 1
    WHERE ${LED_SQLITE} AND id IN (
      SELECT r.id FROM ichido.runs r
      WHERE r.state = 'ORPHANED' AND r.latest AND r.attempt >= $4 AND ${HANDED_OUT} >= $4 LIMIT $3)
    RETURNING ${MOVED}`,
})

const lapsed = (engine: 'postgres' | 'sqlite') => `r.state = 'RUNNING' AND r.latest AND r.continuation_state = 'NONE'
  AND r.lease_expires_at < ${NOW} AND ${leaseTtlMs(engine, '$7')} <= $6`

/**
 * Takes a maximum, now, the default continuation time in s, for how many ms the store's clock has gone evenly, and the
 * default lease time in s. The lease has lapsed: the worker has until the deadline to be heard of. No transition.
 */
export const confirmRuns = statement('confirm_runs', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id, ${continuationMs('postgres', '$5')} AS continuation_ms FROM l CROSS JOIN ichido.runs r
      WHERE ${lapsed('postgres')} ORDER BY r.job_id LIMIT $3 FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET continuation_state = 'CONFIRMING',
      continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM c WHERE r.id = c.id RETURNING r.id`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM (SELECT r.id AS run_id, ${continuationMs('sqlite', '$5')} AS continuation_ms FROM ichido.runs r
      WHERE ${lapsed('sqlite')} LIMIT $3) c
    WHERE runs.id = c.run_id AND ${LED_SQLITE} RETURNING runs.id`,
})

const GRACE = 'CAST($7 AS bigint)'
// Young runs are passed over before their job's policy is read.
const overdue = (engine: 'postgres' | 'sqlite') => `r.state = 'RUNNING' AND r.latest AND r.continuation_state = 'NONE'
  AND r.started_at <= ${NOW} - ${GRACE} AND 1000 * ${TIMEOUT[engine]} + ${GRACE} <= ${NOW} - r.started_at
  AND 1000 * ${TIMEOUT[engine]} + ${GRACE} <= $6`

/**
 * Takes a maximum, now, the default continuation time in s, for how many ms the store's clock has gone evenly, a grace in
 * ms in which the worker may end the run by itself, and the error. A run that has taken too long loses its lease, of which
 * its worker hears with the next heartbeat, and ends after the continuation time as any other.
 */
export const haltRuns = statement('halt_runs', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id, ${continuationMs('postgres', '$5')} AS continuation_ms FROM l CROSS JOIN ichido.runs r ${OF_RUN}
      WHERE ${overdue('postgres')}
      ORDER BY r.job_id LIMIT $3 FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET continuation_state = 'CONFIRMING', lease_id = NULL, error = $8,
      continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM c WHERE r.id = c.id RETURNING r.id`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'CONFIRMING', lease_id = NULL, error = $8,
      continuation_check_deadline_at = ${NOW} + c.continuation_ms
    FROM (SELECT r.id AS run_id, ${continuationMs('sqlite', '$5')} AS continuation_ms FROM ichido.runs r ${OF_RUN}
      WHERE ${overdue('sqlite')} LIMIT $3) c
    WHERE runs.id = c.run_id AND ${LED_SQLITE} RETURNING runs.id`,
})

/** Takes a maximum and the default continuation time in s. Running runs that the leader ends if nobody else does. */
export const readWaiting = statement('read_waiting', {
  postgres: waiting('postgres'),
  sqlite: waiting('sqlite'),
})

function waiting(engine: 'postgres' | 'sqlite'): string {
  return `SELECT r.id, r.version, r.cancel_requested_at,
      CASE WHEN r.continuation_state = 'CONFIRMING' THEN r.continuation_check_deadline_at END AS deadline_at,
      ${continuationMs(engine, '$2')} AS continuation_ms
    FROM ichido.runs r
    WHERE r.state = 'RUNNING' AND r.latest AND (r.continuation_state = 'CONFIRMING' OR r.cancel_requested_at IS NOT NULL)
    ORDER BY coalesce(r.continuation_check_deadline_at, r.cancel_requested_at), r.id LIMIT $1`
}

const SEEN = `(t.deadline_at IS NOT NULL AND r.continuation_state = 'CONFIRMING'
    AND r.continuation_check_deadline_at = t.deadline_at OR r.cancel_requested_at = t.cancel_requested_at)`

const ENDED = (r: string) => `state = CASE WHEN ${r}cancel_requested_at IS NULL THEN 'TIMED_OUT' ELSE 'CANCELED' END,
  version = ${r}version + 1, finished_at = now_ms(), continuation_state = 'NONE', continuation_check_deadline_at = NULL,
  error = CASE WHEN ${r}cancel_requested_at IS NOT NULL THEN ${r}error
    ELSE coalesce(${r}error, CASE WHEN ${r}lease_id IS NULL THEN $5 ELSE $4 END) END,
  last_event_n = ${r}last_event_n + 1`

/**
 * Takes a JSON array of runs as they were seen (id, version, deadline_at, cancel_requested_at), and the errors of a worker
 * that was lost and of one that was revoked. Guards all of it: a heartbeat since then has moved the deadline. The state is
 * compared where `t` is known: of itself, it would have PostgreSQL read all runs for the few that are RUNNING.
 */
export const expireRuns = statement('expire_runs', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT r.id FROM l CROSS JOIN json_to_recordset($3::json)
        AS t(id uuid, version integer, deadline_at bigint, cancel_requested_at bigint)
      JOIN ichido.runs r ON r.id = t.id
      WHERE r.state || left(t.id::text, 0) = 'RUNNING' AND r.version = t.version AND ${SEEN}
      FOR UPDATE OF r SKIP LOCKED)
    UPDATE ichido.runs r SET ${ENDED('r.')} FROM c WHERE r.id = c.id RETURNING ${MOVED_R}, r.error`,
  sqlite: `UPDATE ichido.runs SET ${ENDED('')} WHERE ${LED_SQLITE} AND id IN (
      SELECT r.id FROM (SELECT value ->> 'id' AS id, value ->> 'version' AS version, value ->> 'deadline_at' AS deadline_at,
          value ->> 'cancel_requested_at' AS cancel_requested_at FROM json_each($3)) t
      JOIN ichido.runs r ON r.id = t.id WHERE r.state = 'RUNNING' AND r.version = t.version AND ${SEEN})
    RETURNING ${MOVED}, error`,
})

/** Takes now. When the next lease lapses, in ms; null when there is none. */
export const nextLapse = statement(
  'next_lapse',
  `SELECT min(lease_expires_at) - CAST($1 AS bigint) AS in_ms FROM ichido.runs
    WHERE state IN ('ASSIGNED', 'RUNNING') AND latest AND continuation_state = 'NONE'`,
)

/** A deadline that has always passed. */
export const PASSED = 0

/** Takes the beginning of worker ids. The process that they lived in is known to be gone: there is nobody to wait for. */
export const forsakeRuns = statement(
  'forsake_runs',
  `UPDATE ichido.runs SET lease_expires_at = 0,
      continuation_state = CASE WHEN state = 'RUNNING' THEN 'CONFIRMING' ELSE continuation_state END,
      continuation_check_deadline_at = CASE WHEN state = 'RUNNING' THEN ${PASSED} END
    WHERE state IN ('ASSIGNED', 'RUNNING') AND assigned_worker_id LIKE $1 || '%' RETURNING id`,
)
