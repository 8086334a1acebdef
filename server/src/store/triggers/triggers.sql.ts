import { TRIGGER_OUTCOMES } from '@ichido/sdk/protocol'
import { COLUMNS_OF_D, DEFINITION_ROW } from '../schedules/definitions.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'

export const outcome = { oneOf: TRIGGER_OUTCOMES } as const

export const data = { json: (value: unknown) => value } as const

/** In the order of their arrival. Only the length of the data is read. */
export const readUnprocessed = statement('read_unprocessed_triggers', {
  params: { max: 'integer' },
  row: { id: 'text', topic: 'text', data_chars: 'integer' },
  sql: `SELECT id, topic, length(data) AS data_chars FROM ichido.triggers WHERE processed_at IS NULL
    ORDER BY created_at, id LIMIT $max`,
})

const ON_TOPIC = 'd.id, d.user_id, d.topic, length(d.payload) AS payload_chars FROM ichido.job_definitions d'

/** The definitions that triggers of these topics may make jobs of. */
export const readOnTopics = statement('read_definitions_on_topics', {
  params: { topic: 'text' },
  row: { id: 'text', user_id: 'text', topic: 'text', payload_chars: 'integer' },
  postgres: `SELECT ${ON_TOPIC} WHERE d.topic = ANY($topic::text[])`,
  sqlite: `SELECT ${ON_TOPIC} WHERE d.topic = $topic`,
})

/**
 * Shares the definitions: a change, a pause or a deletion comes before or after, never in between. The statement waits
 * for a running change, because a trigger without its definition would be processed and its job never made.
 */
export const shareOnTopics = statement('share_definitions_on_topics', {
  params: { topic: 'text' },
  row: DEFINITION_ROW,
  postgres: `SELECT ${COLUMNS_OF_D} FROM ichido.job_definitions d WHERE d.topic = ANY($topic::text[]) ORDER BY d.id FOR SHARE`,
  sqlite: `SELECT ${COLUMNS_OF_D} FROM ichido.job_definitions d WHERE d.topic = $topic`,
})

const TAKEN = 'g.id, g.user_id, g.operates, g.topic, g.data, g.created_at, now_ms() AS now'

/** `ids` is a JSON array. Guards this leader's term, and that no trigger was processed before. */
export const lockUnprocessed = statement('lock_unprocessed_triggers', {
  params: { ...TERM, ids: 'text' },
  row: { id: 'text', user_id: 'text', operates: 'flag', topic: 'text', data, created_at: 'integer' },
  postgres: `${LED}, t AS MATERIALIZED (SELECT t.id::uuid AS id FROM json_array_elements_text($ids::json) AS t(id))
    SELECT g.* FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${TAKEN} FROM ichido.triggers g WHERE g.id = t.id AND coalesce(g.processed_at, 0) = 0
      FOR UPDATE OF g SKIP LOCKED) g`,
  sqlite: `SELECT ${TAKEN} FROM json_each($ids) t JOIN ichido.triggers g ON g.id = t.value
    WHERE g.processed_at IS NULL AND ${LED_SQLITE}`,
})

const WAITING_OUTCOMES = `IN ('waiting_quota', 'waiting_pause', 'waiting_turn')`

const WAITS = `outcome ${WAITING_OUTCOMES}`

/** The same condition, in a form that keeps PostgreSQL from the index of waiting outcomes. */
const WAITS_NO_INDEX = `outcome || '' ${WAITING_OUTCOMES}`

/** Returns the definitions for which a trigger waits. */
export const readWithWaiting = statement('read_definitions_with_waiting', {
  params: { id: 'text' },
  row: { id: 'text' },
  postgres: `SELECT t.id FROM unnest($id::uuid[]) AS t(id)
    WHERE EXISTS (SELECT 1 FROM ichido.trigger_outcomes o WHERE o.definition_id = t.id AND o.${WAITS})`,
  sqlite: `SELECT $id AS id WHERE EXISTS (
      SELECT 1 FROM ichido.trigger_outcomes o WHERE o.definition_id = $id AND o.${WAITS})`,
})

const OUTCOME = `definition_id, trigger_id, triggered_at, outcome, job_id, reason, field, created_at, updated_at`

/** The primary key decides: a pair that exists returns no row, and makes no job. */
export const insertOutcomes = statement('insert_trigger_outcomes', {
  params: {
    definition_id: 'text',
    trigger_id: 'text',
    triggered_at: 'integer',
    outcome,
    job_id: 'text?',
    reason: 'text?',
    field: 'text?',
  },
  row: { definition_id: 'text', trigger_id: 'text' },
  postgres: `INSERT INTO ichido.trigger_outcomes (${OUTCOME})
    SELECT t.*, now_ms(), now_ms() FROM unnest($definition_id::uuid[], $trigger_id::uuid[], $triggered_at::bigint[],
      $outcome::text[], $job_id::uuid[], $reason::text[], $field::text[]) t
    ON CONFLICT DO NOTHING RETURNING definition_id, trigger_id`,
  sqlite: `INSERT INTO ichido.trigger_outcomes (${OUTCOME})
    VALUES ($definition_id, $trigger_id, $triggered_at, $outcome, $job_id, $reason, $field, now_ms(), now_ms())
    ON CONFLICT DO NOTHING RETURNING definition_id, trigger_id`,
})

/** Guards the outcome that the pair had when it was seen. */
export const changeOutcomes = statement('change_trigger_outcomes', {
  params: {
    definition_id: 'text',
    trigger_id: 'text',
    seen: outcome,
    outcome,
    job_id: 'text?',
    reason: 'text?',
    field: 'text?',
  },
  row: {},
  postgres: `UPDATE ichido.trigger_outcomes o SET outcome = t.outcome, job_id = t.job_id, reason = t.reason, field = t.field,
      updated_at = now_ms()
    FROM unnest($definition_id::uuid[], $trigger_id::uuid[], $seen::text[], $outcome::text[], $job_id::uuid[],
      $reason::text[], $field::text[]) AS t(definition_id, trigger_id, seen, outcome, job_id, reason, field)
    WHERE o.definition_id = t.definition_id AND o.trigger_id = t.trigger_id AND o.outcome = t.seen`,
  sqlite: `UPDATE ichido.trigger_outcomes SET outcome = $outcome, job_id = $job_id, reason = $reason, field = $field,
      updated_at = now_ms()
    WHERE definition_id = $definition_id AND trigger_id = $trigger_id AND outcome = $seen`,
})

/** The triggers are locked. `waits`: an outcome of the trigger waits. Coalesce makes PostgreSQL use the primary key. */
export const markProcessed = statement('mark_triggers_processed', {
  params: { id: 'text', waits: 'flag' },
  row: { id: 'text' },
  postgres: `UPDATE ichido.triggers g SET processed_at = now_ms(), settled_at = CASE WHEN t.waits THEN NULL ELSE now_ms() END
    FROM unnest($id::uuid[], $waits::boolean[]) AS t(id, waits)
    WHERE g.id = t.id AND coalesce(g.processed_at, 0) = 0 RETURNING g.id`,
  sqlite: `UPDATE ichido.triggers SET processed_at = now_ms(), settled_at = CASE WHEN $waits THEN NULL ELSE now_ms() END
    WHERE id = $id AND processed_at IS NULL RETURNING id`,
})

/**
 * Definitions that are not paused and have waiting triggers, by id, after the definition `after`. Deleted ones have no
 * user. The query jumps from one definition to the next: a pause may have kept a million triggers.
 */
export const readWaitingDefinitions = statement('read_waiting_definitions', {
  params: { after: 'text', max: 'integer' },
  row: { id: 'text', user_id: 'text?', payload_chars: 'integer?' },
  sql: `WITH RECURSIVE w(id) AS (
      SELECT * FROM (SELECT definition_id FROM ichido.trigger_outcomes WHERE ${WAITS} AND definition_id > $after
        ORDER BY definition_id LIMIT 1) f
      UNION ALL
      SELECT (SELECT o.definition_id FROM ichido.trigger_outcomes o WHERE o.${WAITS} AND o.definition_id > w.id
        ORDER BY o.definition_id LIMIT 1)
      FROM w WHERE w.id IS NOT NULL)
    SELECT w.id, d.user_id, length(d.payload) AS payload_chars FROM w LEFT JOIN ichido.job_definitions d ON d.id = w.id
    WHERE w.id IS NOT NULL AND d.paused_at IS NULL LIMIT $max`,
})

const FIRST_WAITING = (
  definition: string,
  max: string,
) => `SELECT o.definition_id, o.trigger_id, length(g.data) AS data_chars
  FROM ichido.trigger_outcomes o JOIN ichido.triggers g ON g.id = o.trigger_id
  WHERE o.definition_id = ${definition} AND o.${WAITS} ORDER BY o.triggered_at, o.trigger_id LIMIT ${max}`

/** The first waiting triggers of each definition, in the order of their arrival. */
export const readFirstWaiting = statement('read_first_waiting_triggers', {
  params: { id: 'text', max: 'integer' },
  row: { definition_id: 'text', trigger_id: 'text', data_chars: 'integer' },
  postgres: `SELECT w.* FROM unnest($id::uuid[], $max::bigint[]) AS t(id, max)
    CROSS JOIN LATERAL (${FIRST_WAITING('t.id', 't.max')}) w`,
  sqlite: FIRST_WAITING('$id', '$max'),
})

/**
 * `ids` is a JSON array. Shares the definitions that are not paused. A locked definition is left for the next round.
 */
export const shareUnpaused = statement('share_unpaused_definitions', {
  params: { ...TERM, ids: 'text' },
  row: DEFINITION_ROW,
  postgres: `${LED}, t AS MATERIALIZED (SELECT t.id::uuid AS id FROM json_array_elements_text($ids::json) AS t(id))
    SELECT d.* FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${COLUMNS_OF_D} FROM ichido.job_definitions d WHERE d.id = t.id AND coalesce(d.paused_at, 0) = 0
      FOR SHARE OF d SKIP LOCKED) d`,
  sqlite: `SELECT ${COLUMNS_OF_D} FROM json_each($ids) t JOIN ichido.job_definitions d ON d.id = t.value
    WHERE d.paused_at IS NULL AND ${LED_SQLITE}`,
})

const WAITING = `o.definition_id, o.trigger_id, o.triggered_at, o.outcome, g.topic, g.data`

/** Runs after a statement under the fence. Guards that each pair still waits. */
export const lockWaiting = statement('lock_waiting_triggers', {
  params: { definition_id: 'text', trigger_id: 'text' },
  row: { definition_id: 'text', trigger_id: 'text', triggered_at: 'integer', outcome, topic: 'text', data },
  postgres: `SELECT ${WAITING} FROM unnest($definition_id::uuid[], $trigger_id::uuid[]) AS t(definition_id, trigger_id)
    JOIN ichido.trigger_outcomes o ON o.definition_id = t.definition_id AND o.trigger_id = t.trigger_id
    JOIN ichido.triggers g ON g.id = o.trigger_id
    WHERE o.${WAITS_NO_INDEX} FOR UPDATE OF o`,
  sqlite: `SELECT ${WAITING} FROM ichido.trigger_outcomes o JOIN ichido.triggers g ON g.id = o.trigger_id
    WHERE o.definition_id = $definition_id AND o.trigger_id = $trigger_id AND o.${WAITS}`,
})

/**
 * Triggers without waiting outcomes may be removed after their retention. PostgreSQL must read the few outcomes of each
 * trigger: by the index of waiting outcomes it would read all that a pause has kept, a second for 100,000, while the
 * term is locked.
 */
export const settleTriggers = statement('settle_triggers', {
  params: { id: 'text' },
  row: {},
  postgres: `UPDATE ichido.triggers g SET settled_at = now_ms() FROM unnest($id::uuid[]) AS t(id)
    WHERE g.id = t.id AND coalesce(g.settled_at, 0) = 0
      AND NOT EXISTS (SELECT 1 FROM ichido.trigger_outcomes o WHERE o.trigger_id = g.id AND o.${WAITS_NO_INDEX})`,
  sqlite: `UPDATE ichido.triggers SET settled_at = now_ms() WHERE id = $id AND settled_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM ichido.trigger_outcomes o WHERE o.trigger_id = triggers.id AND o.${WAITS})`,
})

const ORPHANED = `SELECT o.definition_id, o.trigger_id FROM ichido.trigger_outcomes o
  WHERE o.definition_id = $definition_id AND o.${WAITS}
    AND NOT EXISTS (SELECT 1 FROM ichido.job_definitions d WHERE d.id = o.definition_id)
  ORDER BY o.triggered_at, o.trigger_id LIMIT $max`

const DROP = `UPDATE ichido.trigger_outcomes SET outcome = 'skipped', reason = 'deleted', updated_at = now_ms()`

/** Skips the triggers that wait for a deleted definition. */
export const dropOrphaned = statement('drop_orphaned_triggers', {
  params: { ...TERM, definition_id: 'text', max: 'integer' },
  row: { trigger_id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (SELECT o.* FROM l CROSS JOIN LATERAL (${ORPHANED}) o)
    ${DROP} WHERE (definition_id, trigger_id) IN (SELECT * FROM c) RETURNING trigger_id`,
  sqlite: `${DROP} WHERE ${LED_SQLITE} AND (definition_id, trigger_id) IN (${ORPHANED}) RETURNING trigger_id`,
})

/** Locks triggers whose retention has ended. */
export const lockOutlived = statement('lock_outlived_triggers', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT g.id FROM l CROSS JOIN ichido.triggers g WHERE g.settled_at <= (SELECT now_ms()) - CAST($age_ms AS bigint)
      ORDER BY g.settled_at LIMIT $max FOR UPDATE OF g SKIP LOCKED)
    SELECT id FROM c`,
  sqlite: `SELECT id FROM ichido.triggers WHERE ${LED_SQLITE} AND settled_at <= now_ms() - $age_ms
    ORDER BY settled_at LIMIT $max`,
})

/** The triggers are locked. */
export const deleteOutcomes = statement('delete_trigger_outcomes', {
  params: { id: 'text' },
  row: {},
  postgres: 'DELETE FROM ichido.trigger_outcomes WHERE trigger_id = ANY($id::uuid[])',
  sqlite: 'DELETE FROM ichido.trigger_outcomes WHERE trigger_id = $id',
})

/** The triggers are locked, and their outcomes were deleted. Their dedupe keys are free again. */
export const deleteTriggers = statement('delete_triggers', {
  params: { id: 'text' },
  row: { id: 'text' },
  postgres: 'DELETE FROM ichido.triggers WHERE id = ANY($id::uuid[]) RETURNING id',
  sqlite: 'DELETE FROM ichido.triggers WHERE id = $id RETURNING id',
})
