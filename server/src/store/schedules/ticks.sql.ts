import { stored } from '../../core/json/stored-json.ts'
import { isSchedule } from '../../core/schedule/schedule.ts'
import { ORIGINS, OUTCOMES } from '../../core/schedule/ticks.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'
import { COLUMNS_OF_D, DEFINITION_ROW } from './definitions.sql.ts'

const outcome = { oneOf: OUTCOMES } as const

/** Definitions with a due tick, the longest overdue first. Payloads may be large, so only their length is read. */
export const readDue = statement('read_due_definitions', {
  params: { max: 'integer' },
  row: {
    id: 'text',
    name: 'text',
    user_id: 'text',
    schedule: { json: stored('schedule', isSchedule) },
    version: 'integer',
    next_tick_at: 'integer',
    payload_chars: 'integer',
    now: 'integer',
  },
  sql: `SELECT d.id, d.name, d.user_id, d.schedule, d.version, d.next_tick_at, length(d.payload) AS payload_chars, now_ms() AS now
    FROM ichido.job_definitions d
    WHERE d.next_tick_at IS NOT NULL AND d.next_tick_at <= (SELECT now_ms()) AND d.paused_at IS NULL
    ORDER BY d.next_tick_at LIMIT $max`,
})

/** The time until the next tick, in ms; null if there is none. */
export const nextTickIn = statement('next_tick_in', {
  params: {},
  row: { in_ms: 'integer?' },
  sql: `SELECT min(next_tick_at) - now_ms() AS in_ms FROM ichido.job_definitions
    WHERE next_tick_at IS NOT NULL AND paused_at IS NULL`,
})

/**
 * `seen` is a JSON array of definitions as they were seen (id, version, next_tick_at). Guards all of it, and that none is
 * paused: a tick meets a pause, another rule or another leader here, and changes nothing. A definition that another
 * transaction has locked is left for the next round. The rows stay locked until the ticks are committed. LATERAL and coalesce
 * hold PostgreSQL to the primary key: a plan made for few definitions went through all of them for each of thousands that are
 * due at once.
 */
export const lockDue = statement('lock_due_definitions', {
  params: { ...TERM, seen: 'text' },
  row: { ...DEFINITION_ROW, now: 'integer' },
  postgres: `${LED}, t AS MATERIALIZED (
      SELECT * FROM json_to_recordset($seen::json) AS t(id uuid, version integer, next_tick_at bigint) ORDER BY id)
    SELECT d.*, now_ms() AS now FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${COLUMNS_OF_D} FROM ichido.job_definitions d
      WHERE d.id = t.id AND d.version = t.version AND d.next_tick_at = t.next_tick_at AND coalesce(d.paused_at, 0) = 0
      FOR UPDATE OF d SKIP LOCKED) d`,
  sqlite: `SELECT ${COLUMNS_OF_D}, now_ms() AS now
    FROM (SELECT value ->> 'id' AS id, value ->> 'version' AS version, value ->> 'next_tick_at' AS next_tick_at
      FROM json_each($seen)) t
    JOIN ichido.job_definitions d ON d.id = t.id
    WHERE d.version = t.version AND d.next_tick_at = t.next_tick_at AND d.paused_at IS NULL AND ${LED_SQLITE}
    ORDER BY d.id`,
})

const WAITS = `outcome IN ('waiting_quota', 'waiting_overlap')`

/** Only jobs of the definition's own user: another user must not delay its ticks. */
const ACTIVE = `r.definition_id = t.id AND r.definition_id IS NOT NULL
    AND r.user_id = (SELECT d.user_id FROM ichido.job_definitions d WHERE d.id = t.id)`
const inRooms = (condition: (room: string) => string) => `(${condition('ready')} OR ${condition('held')})`

const LOAD = `${inRooms((room) => `EXISTS (SELECT 1 FROM ichido.${room} r WHERE ${ACTIVE})`)} AS active,
  (SELECT count(*) FROM ichido.occurrences o WHERE o.definition_id = t.id AND o.${WAITS}) AS waiting`

/** For locked definitions: whether one of their jobs has not ended, and how many of their ticks wait. */
export const readLoad = statement('read_standing', {
  params: { id: 'text' },
  row: { id: 'text', active: 'flag', waiting: 'integer' },
  postgres: `SELECT t.id, ${LOAD} FROM unnest($id::uuid[]) AS t(id)`,
  sqlite: `SELECT t.id, ${LOAD} FROM (SELECT $id AS id) t`,
})

const OTHERS = inRooms(
  (room) => `EXISTS (SELECT 1 FROM ichido.${room} r JOIN ichido.jobs j ON by_key(j.id, r.job_id) WHERE ${ACTIVE}
    AND NOT EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = t.id AND o.scheduled_for = j.scheduled_for
      AND o.origin = 'backfill'))`,
)

/** Returns the definitions whose active jobs are all of backfills. */
export const readBackfilledOnly = statement('read_backfilled_only', {
  params: { id: 'text' },
  row: { id: 'text' },
  postgres: `SELECT t.id FROM unnest($id::uuid[]) AS t(id) WHERE NOT ${OTHERS}`,
  sqlite: `SELECT t.id FROM (SELECT $id AS id) t WHERE NOT ${OTHERS}`,
})

const OCCURRENCE = `definition_id, scheduled_for, outcome, job_id, reason, run_at, skipped_until, origin, created_at, updated_at`

/**
 * `skipped_until`: the last tick of a skip of many. The primary key decides: a tick that exists returns no row, and
 * makes no job.
 */
export const insertOccurrences = statement('insert_occurrences', {
  params: {
    definition_id: 'text',
    scheduled_for: 'integer',
    outcome,
    job_id: 'text?',
    reason: 'text?',
    run_at: 'integer?',
    skipped_until: 'integer?',
    origin: { oneOf: ORIGINS },
  },
  row: { definition_id: 'text', scheduled_for: 'integer' },
  postgres: `INSERT INTO ichido.occurrences (${OCCURRENCE})
    SELECT t.*, now_ms(), now_ms() FROM unnest($definition_id::uuid[], $scheduled_for::bigint[], $outcome::text[],
      $job_id::uuid[], $reason::text[], $run_at::bigint[], $skipped_until::bigint[], $origin::text[]) t
    ON CONFLICT DO NOTHING RETURNING definition_id, scheduled_for`,
  sqlite: `INSERT INTO ichido.occurrences (${OCCURRENCE})
    VALUES ($definition_id, $scheduled_for, $outcome, $job_id, $reason, $run_at, $skipped_until, $origin, now_ms(), now_ms())
    ON CONFLICT DO NOTHING RETURNING definition_id, scheduled_for`,
})

/** Guards the outcome that the tick had when it was seen. */
export const changeOccurrences = statement('change_occurrences', {
  params: {
    definition_id: 'text',
    scheduled_for: 'integer',
    seen: outcome,
    outcome,
    job_id: 'text?',
    reason: 'text?',
  },
  row: {},
  postgres: `UPDATE ichido.occurrences o SET outcome = t.outcome, job_id = t.job_id, reason = t.reason, updated_at = now_ms()
    FROM unnest($definition_id::uuid[], $scheduled_for::bigint[], $seen::text[], $outcome::text[], $job_id::uuid[],
      $reason::text[]) AS t(definition_id, scheduled_for, seen, outcome, job_id, reason)
    WHERE o.definition_id = t.definition_id AND o.scheduled_for = t.scheduled_for AND o.outcome = t.seen`,
  sqlite: `UPDATE ichido.occurrences SET outcome = $outcome, job_id = $job_id, reason = $reason, updated_at = now_ms()
    WHERE definition_id = $definition_id AND scheduled_for = $scheduled_for AND outcome = $seen`,
})

/** Guards the next tick that was seen. `last`: the last decided tick. */
export const advanceNextTick = statement('advance_next_tick', {
  params: { id: 'text', seen: 'integer', next: 'integer?', last: 'integer' },
  row: { id: 'text' },
  postgres: `UPDATE ichido.job_definitions d SET next_tick_at = t.next, last_tick_at = t.last
    FROM unnest($id::uuid[], $seen::bigint[], $next::bigint[], $last::bigint[]) AS t(id, seen, next, last)
    WHERE d.id = t.id AND d.next_tick_at = t.seen RETURNING d.id`,
  sqlite: `UPDATE ichido.job_definitions SET next_tick_at = $next, last_tick_at = $last
    WHERE id = $id AND next_tick_at = $seen RETURNING id`,
})

/**
 * The first waiting tick of each definition after the definition `after`. Later ticks have their turn when it has
 * become a job.
 */
export const readWaitingTicks = statement('read_waiting_ticks', {
  params: { after: 'text', max: 'integer' },
  row: { definition_id: 'text', user_id: 'text', scheduled_for: 'integer', payload_chars: 'integer' },
  sql: `SELECT o.definition_id, d.user_id, o.scheduled_for, length(d.payload) AS payload_chars FROM (
      SELECT definition_id, min(scheduled_for) AS scheduled_for FROM ichido.occurrences
      WHERE ${WAITS} AND definition_id > $after GROUP BY definition_id ORDER BY definition_id LIMIT $max) o
    JOIN ichido.job_definitions d ON d.id = o.definition_id ORDER BY o.definition_id`,
})

const WAITING = `o.scheduled_for, o.outcome, o.run_at, now_ms() AS now`

/** `ticks` is a JSON array. Guards that each tick still waits, and that its definition exists and is not paused. */
export const lockWaitingTicks = statement('lock_waiting_ticks', {
  params: { ...TERM, ticks: 'text' },
  row: { ...DEFINITION_ROW, scheduled_for: 'integer', outcome, run_at: 'integer?', now: 'integer' },
  postgres: `${LED}, t AS MATERIALIZED (
      SELECT * FROM json_to_recordset($ticks::json) AS t(definition_id uuid, scheduled_for bigint) ORDER BY definition_id)
    SELECT w.* FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${COLUMNS_OF_D}, ${WAITING}
      FROM ichido.occurrences o JOIN ichido.job_definitions d ON d.id = o.definition_id
      WHERE o.definition_id = t.definition_id AND o.scheduled_for = t.scheduled_for AND o.${WAITS} AND d.paused_at IS NULL
      FOR UPDATE OF d, o SKIP LOCKED) w`,
  sqlite: `SELECT ${COLUMNS_OF_D}, ${WAITING}
    FROM (SELECT value ->> 'definition_id' AS definition_id, value ->> 'scheduled_for' AS scheduled_for FROM json_each($ticks)) t
    JOIN ichido.occurrences o ON o.definition_id = t.definition_id AND o.scheduled_for = t.scheduled_for
    JOIN ichido.job_definitions d ON d.id = o.definition_id
    WHERE o.${WAITS} AND d.paused_at IS NULL AND ${LED_SQLITE}
    ORDER BY d.id`,
})
