import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'
import { DEFINITION_COLUMNS } from './definitions.sql.ts'

const DEFINITION = DEFINITION_COLUMNS.replaceAll(/\w+/g, 'd.$&')

/** Takes a maximum: definitions whose tick is due, the one that waits longest first. Of payloads, which may be large, the length. */
export const readDue = statement(
  'read_due_definitions',
  `SELECT d.id, d.name, d.user_id, d.schedule, d.version, d.next_tick_at, length(d.payload) AS payload_chars, now_ms() AS now
    FROM ichido.job_definitions d
    WHERE d.next_tick_at IS NOT NULL AND d.next_tick_at <= (SELECT now_ms()) AND d.paused_at IS NULL
    ORDER BY d.next_tick_at LIMIT $1`,
)

/** In how many ms the next tick is due; null when there is none. */
export const nextTickIn = statement(
  'next_tick_in',
  `SELECT min(next_tick_at) - now_ms() AS in_ms FROM ichido.job_definitions
    WHERE next_tick_at IS NOT NULL AND paused_at IS NULL`,
)

/**
 * Takes epoch, holder, and a JSON array of definitions as they were seen (id, version, next_tick_at). Guards all of it, and
 * that none is paused: a tick meets a pause, another rule or another leader here, and changes nothing. One that somebody has
 * locked has time. Stays locked until the ticks are committed. LATERAL and coalesce hold PostgreSQL to the primary key: a plan
 * made for few definitions went through all of them for each of thousands that are due at once.
 */
export const lockDue = statement('lock_due_definitions', {
  postgres: `${LED}, t AS MATERIALIZED (
      SELECT * FROM json_to_recordset($3::json) AS t(id uuid, version integer, next_tick_at bigint) ORDER BY id)
    SELECT d.*, now_ms() AS now FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${DEFINITION} FROM ichido.job_definitions d
      WHERE d.id = t.id AND d.version = t.version AND d.next_tick_at = t.next_tick_at AND coalesce(d.paused_at, 0) = 0
      FOR UPDATE OF d SKIP LOCKED) d`,
  sqlite: `SELECT ${DEFINITION}, now_ms() AS now
    FROM (SELECT value ->> 'id' AS id, value ->> 'version' AS version, value ->> 'next_tick_at' AS next_tick_at
      FROM json_each($3)) t
    JOIN ichido.job_definitions d ON d.id = t.id
    WHERE d.version = t.version AND d.next_tick_at = t.next_tick_at AND d.paused_at IS NULL AND ${LED_SQLITE}
    ORDER BY d.id`,
})

const WAITS = `outcome IN ('waiting_quota', 'waiting_overlap')`

/** Not what somebody else made after it by its name: who may not run a definition must not hold up its ticks. */
const ACTIVE = `r.definition_id = t.id AND r.definition_id IS NOT NULL AND r.latest
    AND r.state IN ('PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING')
    AND r.user_id = (SELECT d.user_id FROM ichido.job_definitions d WHERE d.id = t.id)`

const STANDING = `EXISTS (SELECT 1 FROM ichido.runs r WHERE ${ACTIVE}) AS active,
  (SELECT count(*) FROM ichido.occurrences o WHERE o.definition_id = t.id AND o.${WAITS}) AS waiting`

/** Takes definitions that are locked: whether a job of theirs has not ended, and how many of their ticks wait. */
export const readLoad = statement('read_standing', {
  postgres: `SELECT t.id, ${STANDING} FROM unnest($1::uuid[]) AS t(id)`,
  sqlite: `SELECT t.id, ${STANDING} FROM (SELECT $1 AS id) t`,
})

const OTHERS = `EXISTS (SELECT 1 FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id WHERE ${ACTIVE}
    AND NOT EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = t.id AND o.scheduled_for = j.scheduled_for
      AND o.origin = 'backfill'))`

/** Takes definitions; answers with those that have no job that has not ended, other than jobs of backfills. */
export const readBackfilledOnly = statement('read_backfilled_only', {
  postgres: `SELECT t.id FROM unnest($1::uuid[]) AS t(id) WHERE NOT ${OTHERS}`,
  sqlite: `SELECT t.id FROM (SELECT $1 AS id) t WHERE NOT ${OTHERS}`,
})

const OCCURRENCE = `definition_id, scheduled_for, outcome, job_id, reason, run_at, skipped_until, origin, created_at, updated_at`

/**
 * Takes definition, tick, outcome, job, reason, run_at, the last tick that a skip stands for, and origin. The primary key
 * decides: of a tick that is there already, nothing is answered, and no job is made.
 */
export const insertOccurrences = statement('insert_occurrences', {
  postgres: `INSERT INTO ichido.occurrences (${OCCURRENCE})
    SELECT t.*, now_ms(), now_ms() FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::uuid[], $5::text[], $6::bigint[],
      $7::bigint[], $8::text[]) t
    ON CONFLICT DO NOTHING RETURNING definition_id, scheduled_for`,
  sqlite: `INSERT INTO ichido.occurrences (${OCCURRENCE}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms(), now_ms())
    ON CONFLICT DO NOTHING RETURNING definition_id, scheduled_for`,
})

/** Takes definition, tick, the outcome that it had, the new one, job and reason. */
export const changeOccurrences = statement('change_occurrences', {
  postgres: `UPDATE ichido.occurrences o SET outcome = t.outcome, job_id = t.job_id, reason = t.reason, updated_at = now_ms()
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[], $5::uuid[], $6::text[])
      AS t(definition_id, scheduled_for, seen, outcome, job_id, reason)
    WHERE o.definition_id = t.definition_id AND o.scheduled_for = t.scheduled_for AND o.outcome = t.seen`,
  sqlite: `UPDATE ichido.occurrences SET outcome = $4, job_id = $5, reason = $6, updated_at = now_ms()
    WHERE definition_id = $1 AND scheduled_for = $2 AND outcome = $3`,
})

/** Takes definition, the next tick as it was seen, the new one, and the last one that was dealt with. */
export const advanceNextTick = statement('advance_next_tick', {
  postgres: `UPDATE ichido.job_definitions d SET next_tick_at = t.next, last_tick_at = t.last
    FROM unnest($1::uuid[], $2::bigint[], $3::bigint[], $4::bigint[]) AS t(id, seen, next, last)
    WHERE d.id = t.id AND d.next_tick_at = t.seen RETURNING d.id`,
  sqlite: `UPDATE ichido.job_definitions SET next_tick_at = $3, last_tick_at = $4
    WHERE id = $1 AND next_tick_at = $2 RETURNING id`,
})

/**
 * Takes a definition to go on after, and a maximum: the first waiting tick of each definition. Those behind it have their turn
 * when it has become a job.
 */
export const readWaitingTicks = statement(
  'read_waiting_ticks',
  `SELECT o.definition_id, d.user_id, o.scheduled_for, length(d.payload) AS payload_chars FROM (
      SELECT definition_id, min(scheduled_for) AS scheduled_for FROM ichido.occurrences
      WHERE ${WAITS} AND definition_id > $1 GROUP BY definition_id ORDER BY definition_id LIMIT $2) o
    JOIN ichido.job_definitions d ON d.id = o.definition_id ORDER BY o.definition_id`,
)

const WAITING = `o.scheduled_for, o.outcome, o.run_at, now_ms() AS now`

/** Takes epoch, holder, and a JSON array of ticks. Guards: each still waits, and its definition is there and not paused. */
export const lockWaitingTicks = statement('lock_waiting_ticks', {
  postgres: `${LED}, t AS MATERIALIZED (
      SELECT * FROM json_to_recordset($3::json) AS t(definition_id uuid, scheduled_for bigint) ORDER BY definition_id)
    SELECT w.* FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${DEFINITION}, ${WAITING}
      FROM ichido.occurrences o JOIN ichido.job_definitions d ON d.id = o.definition_id
      WHERE o.definition_id = t.definition_id AND o.scheduled_for = t.scheduled_for AND o.${WAITS} AND d.paused_at IS NULL
      FOR UPDATE OF d, o SKIP LOCKED) w`,
  sqlite: `SELECT ${DEFINITION}, ${WAITING}
    FROM (SELECT value ->> 'definition_id' AS definition_id, value ->> 'scheduled_for' AS scheduled_for FROM json_each($3)) t
    JOIN ichido.occurrences o ON o.definition_id = t.definition_id AND o.scheduled_for = t.scheduled_for
    JOIN ichido.job_definitions d ON d.id = o.definition_id
    WHERE o.${WAITS} AND d.paused_at IS NULL AND ${LED_SQLITE}
    ORDER BY d.id`,
})
