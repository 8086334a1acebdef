import { DEFINITION_COLUMNS } from '../schedules/definitions.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'

const DEFINITION = DEFINITION_COLUMNS.replaceAll(/\w+/g, 'd.$&')
const COLUMNS = 'id, user_id, operates, topic, dedupe_key, data, created_at'

const NEWEST_ON = (topic: string) =>
  `coalesce((SELECT max(d.created_at) FROM ichido.job_definitions d WHERE d.topic = ${topic}), 0)`

/**
 * Takes id, user, whether it operates, topic, dedupe key, data and the time, sorted by user and key, so that two nodes with the
 * same keys do not deadlock. The unique index decides: of a key that is known, nothing is answered. A trigger never seems older
 * than a definition that was there before it, also when the clock went back in between: it would make no job of that one.
 */
export const insertTriggers = statement('insert_triggers', {
  postgres: `INSERT INTO ichido.triggers (${COLUMNS})
    SELECT t.id, t.user_id, t.operates, t.topic, t.dedupe_key, t.data, greatest(t.now, ${NEWEST_ON('t.topic')})
    FROM unnest($1::uuid[], $2::text[], $3::boolean[], $4::text[], $5::text[], $6::text[], $7::bigint[])
      AS t(id, user_id, operates, topic, dedupe_key, data, now)
    ON CONFLICT (user_id, dedupe_key) DO NOTHING RETURNING id`,
  sqlite: `INSERT INTO ichido.triggers (${COLUMNS}) VALUES ($1, $2, $3, $4, $5, $6, max($7, ${NEWEST_ON('$4')}))
    ON CONFLICT (user_id, dedupe_key) DO NOTHING RETURNING id`,
})

const RECORDED = 'g.id, g.user_id, g.topic, g.dedupe_key, g.created_at'

/** Takes user and dedupe key: what was recorded under it. */
export const readRecorded = statement('read_recorded_triggers', {
  postgres: `SELECT ${RECORDED} FROM unnest($1::text[], $2::text[]) AS t(user_id, dedupe_key)
    JOIN ichido.triggers g ON g.user_id = t.user_id AND g.dedupe_key = t.dedupe_key`,
  sqlite: `SELECT ${RECORDED} FROM ichido.triggers g WHERE g.user_id = $1 AND g.dedupe_key = $2`,
})

/** Takes a maximum: those that nothing was decided about, in the order of their arrival. Of data the length. */
export const readUnprocessed = statement(
  'read_unprocessed_triggers',
  `SELECT id, topic, length(data) AS data_chars FROM ichido.triggers WHERE processed_at IS NULL
    ORDER BY created_at, id LIMIT $1`,
)

const ON_TOPIC = 'd.id, d.user_id, d.topic, length(d.payload) AS payload_chars FROM ichido.job_definitions d'

/** Takes topics: the definitions that their triggers may make jobs of. */
export const readOnTopics = statement('read_definitions_on_topics', {
  postgres: `SELECT ${ON_TOPIC} WHERE d.topic = ANY($1::text[])`,
  sqlite: `SELECT ${ON_TOPIC} WHERE d.topic = $1`,
})

/**
 * Takes topics. Shares their definitions: a change, a pause or a deletion comes before or after, never in between. It waits for
 * one that is under way, for without its definition a trigger would be processed and its job never made.
 */
export const shareOnTopics = statement('share_definitions_on_topics', {
  postgres: `SELECT ${DEFINITION} FROM ichido.job_definitions d WHERE d.topic = ANY($1::text[]) ORDER BY d.id FOR SHARE`,
  sqlite: `SELECT ${DEFINITION} FROM ichido.job_definitions d WHERE d.topic = $1`,
})

const TAKEN = 'g.id, g.user_id, g.operates, g.topic, g.data, g.created_at, now_ms() AS now'

/** Takes epoch, holder and a JSON array of ids. Guards: this leader's term, and that nobody has processed them. */
export const lockUnprocessed = statement('lock_unprocessed_triggers', {
  postgres: `${LED}, t AS MATERIALIZED (SELECT t.id::uuid AS id FROM json_array_elements_text($3::json) AS t(id))
    SELECT g.* FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${TAKEN} FROM ichido.triggers g WHERE g.id = t.id AND coalesce(g.processed_at, 0) = 0
      FOR UPDATE OF g SKIP LOCKED) g`,
  sqlite: `SELECT ${TAKEN} FROM json_each($3) t JOIN ichido.triggers g ON g.id = t.value
    WHERE g.processed_at IS NULL AND ${LED_SQLITE}`,
})

const WAITING_OUTCOMES = `IN ('waiting_quota', 'waiting_pause', 'waiting_turn')`
const WAITS = `outcome ${WAITING_OUTCOMES}`
/** The same, and not by the index of what waits. */
const WAITS_NO_INDEX = `outcome || '' ${WAITING_OUTCOMES}`

/** Takes definitions: those of them for which a trigger waits. */
export const readWithWaiting = statement('read_definitions_with_waiting', {
  postgres: `SELECT t.id FROM unnest($1::uuid[]) AS t(id)
    WHERE EXISTS (SELECT 1 FROM ichido.trigger_outcomes o WHERE o.definition_id = t.id AND o.${WAITS})`,
  sqlite: `SELECT $1 AS id WHERE EXISTS (
      SELECT 1 FROM ichido.trigger_outcomes o WHERE o.definition_id = $1 AND o.${WAITS})`,
})

const OUTCOME = `definition_id, trigger_id, triggered_at, outcome, job_id, reason, field, created_at, updated_at`

/**
 * Takes definition, trigger, when it came, outcome, job, reason and field. The primary key decides: of a pair that is there
 * already, nothing is answered, and no job is made.
 */
export const insertOutcomes = statement('insert_trigger_outcomes', {
  postgres: `INSERT INTO ichido.trigger_outcomes (${OUTCOME})
    SELECT t.*, now_ms(), now_ms() FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::text[], $5::uuid[], $6::text[],
      $7::text[]) t
    ON CONFLICT DO NOTHING RETURNING definition_id, trigger_id`,
  sqlite: `INSERT INTO ichido.trigger_outcomes (${OUTCOME}) VALUES ($1, $2, $3, $4, $5, $6, $7, now_ms(), now_ms())
    ON CONFLICT DO NOTHING RETURNING definition_id, trigger_id`,
})

/** Takes definition, trigger, the outcome that it had, the new one, job, reason and field. */
export const changeOutcomes = statement('change_trigger_outcomes', {
  postgres: `UPDATE ichido.trigger_outcomes o SET outcome = t.outcome, job_id = t.job_id, reason = t.reason, field = t.field,
      updated_at = now_ms()
    FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::uuid[], $6::text[], $7::text[])
      AS t(definition_id, trigger_id, seen, outcome, job_id, reason, field)
    WHERE o.definition_id = t.definition_id AND o.trigger_id = t.trigger_id AND o.outcome = t.seen`,
  sqlite: `UPDATE ichido.trigger_outcomes SET outcome = $4, job_id = $5, reason = $6, field = $7, updated_at = now_ms()
    WHERE definition_id = $1 AND trigger_id = $2 AND outcome = $3`,
})

/** Takes triggers that are locked, and of each whether something of it waits. Coalesce holds PostgreSQL to the primary key. */
export const markProcessed = statement('mark_triggers_processed', {
  postgres: `UPDATE ichido.triggers g SET processed_at = now_ms(), settled_at = CASE WHEN t.waits THEN NULL ELSE now_ms() END
    FROM unnest($1::uuid[], $2::boolean[]) AS t(id, waits) WHERE g.id = t.id AND coalesce(g.processed_at, 0) = 0 RETURNING g.id`,
  sqlite: `UPDATE ichido.triggers SET processed_at = now_ms(), settled_at = CASE WHEN $2 THEN NULL ELSE now_ms() END
    WHERE id = $1 AND processed_at IS NULL RETURNING id`,
})

/**
 * Takes a definition to go on after and a maximum: definitions for which triggers wait and which are not paused, by id. Those
 * that were deleted have no user. It leaps from one to the next: a pause may have kept a million triggers.
 */
export const readWaitingDefinitions = statement(
  'read_waiting_definitions',
  `WITH RECURSIVE w(id) AS (
      SELECT * FROM (SELECT definition_id FROM ichido.trigger_outcomes WHERE ${WAITS} AND definition_id > $1
        ORDER BY definition_id LIMIT 1) f
      UNION ALL
      SELECT (SELECT o.definition_id FROM ichido.trigger_outcomes o WHERE o.${WAITS} AND o.definition_id > w.id
        ORDER BY o.definition_id LIMIT 1)
      FROM w WHERE w.id IS NOT NULL)
    SELECT w.id, d.user_id, length(d.payload) AS payload_chars FROM w LEFT JOIN ichido.job_definitions d ON d.id = w.id
    WHERE w.id IS NOT NULL AND d.paused_at IS NULL LIMIT $2`,
)

const FIRST_WAITING = (
  definition: string,
  max: string,
) => `SELECT o.definition_id, o.trigger_id, length(g.data) AS data_chars
  FROM ichido.trigger_outcomes o JOIN ichido.triggers g ON g.id = o.trigger_id
  WHERE o.definition_id = ${definition} AND o.${WAITS} ORDER BY o.triggered_at, o.trigger_id LIMIT ${max}`

/** Takes definitions, and of each a maximum: the first of its triggers that wait, in the order of their arrival. */
export const readFirstWaiting = statement('read_first_waiting_triggers', {
  postgres: `SELECT w.* FROM unnest($1::uuid[], $2::bigint[]) AS t(id, max)
    CROSS JOIN LATERAL (${FIRST_WAITING('t.id', 't.max')}) w`,
  sqlite: FIRST_WAITING('$1', '$2'),
})

/** Takes epoch, holder and a JSON array of definitions. Shares those that are not paused; one that somebody has locked has time. */
export const shareUnpaused = statement('share_unpaused_definitions', {
  postgres: `${LED}, t AS MATERIALIZED (SELECT t.id::uuid AS id FROM json_array_elements_text($3::json) AS t(id))
    SELECT d.* FROM l CROSS JOIN t CROSS JOIN LATERAL (
      SELECT ${DEFINITION} FROM ichido.job_definitions d WHERE d.id = t.id AND coalesce(d.paused_at, 0) = 0
      FOR SHARE OF d SKIP LOCKED) d`,
  sqlite: `SELECT ${DEFINITION} FROM json_each($3) t JOIN ichido.job_definitions d ON d.id = t.value
    WHERE d.paused_at IS NULL AND ${LED_SQLITE}`,
})

const WAITING = `o.definition_id, o.trigger_id, o.triggered_at, o.outcome, g.topic, g.data`

/** Takes definitions and triggers, after the fence. Guards: each still waits. */
export const lockWaiting = statement('lock_waiting_triggers', {
  postgres: `SELECT ${WAITING} FROM unnest($1::uuid[], $2::uuid[]) AS t(definition_id, trigger_id)
    JOIN ichido.trigger_outcomes o ON o.definition_id = t.definition_id AND o.trigger_id = t.trigger_id
    JOIN ichido.triggers g ON g.id = o.trigger_id
    WHERE o.${WAITS_NO_INDEX} FOR UPDATE OF o`,
  sqlite: `SELECT ${WAITING} FROM ichido.trigger_outcomes o JOIN ichido.triggers g ON g.id = o.trigger_id
    WHERE o.definition_id = $1 AND o.trigger_id = $2 AND o.${WAITS}`,
})

/**
 * Takes triggers. Those of which nothing waits any more may go when their time is up. PostgreSQL is held to the few outcomes of
 * each: by the index of what waits it would read all that a pause has kept, a second for 100,000, while the term is locked.
 */
export const settleTriggers = statement('settle_triggers', {
  postgres: `UPDATE ichido.triggers g SET settled_at = now_ms() FROM unnest($1::uuid[]) AS t(id)
    WHERE g.id = t.id AND coalesce(g.settled_at, 0) = 0
      AND NOT EXISTS (SELECT 1 FROM ichido.trigger_outcomes o WHERE o.trigger_id = g.id AND o.${WAITS_NO_INDEX})`,
  sqlite: `UPDATE ichido.triggers SET settled_at = now_ms() WHERE id = $1 AND settled_at IS NULL
    AND NOT EXISTS (SELECT 1 FROM ichido.trigger_outcomes o WHERE o.trigger_id = triggers.id AND o.${WAITS})`,
})

const ORPHANED = `SELECT o.definition_id, o.trigger_id FROM ichido.trigger_outcomes o
  WHERE o.definition_id = $3 AND o.${WAITS}
    AND NOT EXISTS (SELECT 1 FROM ichido.job_definitions d WHERE d.id = o.definition_id)
  ORDER BY o.triggered_at, o.trigger_id LIMIT $4`
const DROP = `UPDATE ichido.trigger_outcomes SET outcome = 'skipped', reason = 'deleted', updated_at = now_ms()`

/** Takes epoch, holder, a definition and a maximum. Skips what waits for a definition that was deleted. */
export const dropOrphaned = statement('drop_orphaned_triggers', {
  postgres: `${LED}, c AS MATERIALIZED (SELECT o.* FROM l CROSS JOIN LATERAL (${ORPHANED}) o)
    ${DROP} WHERE (definition_id, trigger_id) IN (SELECT * FROM c) RETURNING trigger_id`,
  sqlite: `${DROP} WHERE ${LED_SQLITE} AND (definition_id, trigger_id) IN (${ORPHANED}) RETURNING trigger_id`,
})

/** Takes a trigger's id. */
export const readTrigger = statement(
  'read_trigger',
  `SELECT id, user_id, topic, dedupe_key, data, created_at, processed_at, settled_at FROM ichido.triggers WHERE id = $1`,
)

const OF_TRIGGER = `o.trigger_id, o.definition_id, o.outcome, o.job_id, o.reason, o.field, o.updated_at,
  (SELECT d.name FROM ichido.job_definitions d WHERE d.id = o.definition_id) AS definition FROM ichido.trigger_outcomes o`

/** Takes triggers: what each made. */
export const readOutcomes = statement('read_trigger_outcomes', {
  postgres: `SELECT ${OF_TRIGGER} WHERE o.trigger_id = ANY($1::uuid[]) ORDER BY o.definition_id`,
  sqlite: `SELECT ${OF_TRIGGER} WHERE o.trigger_id = $1 ORDER BY o.definition_id`,
})

/** Takes a definition, a trigger to go on after and a maximum: its ledger, newest first. */
export const readLedger = statement(
  'read_trigger_ledger',
  `SELECT o.trigger_id, g.topic, g.dedupe_key, o.triggered_at, o.outcome, o.job_id, o.reason, o.field, o.updated_at
    FROM ichido.trigger_outcomes o JOIN ichido.triggers g ON g.id = o.trigger_id
    WHERE o.definition_id = $1 AND o.trigger_id < $2 ORDER BY o.trigger_id DESC LIMIT $3`,
)

/** How many triggers nobody has processed, since when the first of them, and how many wait. */
export const countTriggers = statement(
  'count_triggers',
  `SELECT (SELECT count(*) FROM ichido.triggers WHERE processed_at IS NULL) AS unprocessed,
    (SELECT now_ms() - min(created_at) FROM ichido.triggers WHERE processed_at IS NULL) AS oldest_ms,
    (SELECT count(*) FROM ichido.triggers WHERE processed_at IS NOT NULL AND settled_at IS NULL) AS waiting`,
)

/** Takes epoch, holder, a maximum and an age. Locks the triggers whose time is up. */
export const lockOutlived = statement('lock_outlived_triggers', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT g.id FROM l CROSS JOIN ichido.triggers g WHERE g.settled_at <= (SELECT now_ms()) - CAST($4 AS bigint)
      ORDER BY g.settled_at LIMIT $3 FOR UPDATE OF g SKIP LOCKED)
    SELECT id FROM c`,
  sqlite: `SELECT id FROM ichido.triggers WHERE ${LED_SQLITE} AND settled_at <= now_ms() - $4 ORDER BY settled_at LIMIT $3`,
})

/** Takes triggers that are locked. */
export const deleteOutcomes = statement('delete_trigger_outcomes', {
  postgres: 'DELETE FROM ichido.trigger_outcomes WHERE trigger_id = ANY($1::uuid[])',
  sqlite: 'DELETE FROM ichido.trigger_outcomes WHERE trigger_id = $1',
})

/** Takes triggers that are locked, after their outcomes. Their dedupe keys are free again. */
export const deleteTriggers = statement('delete_triggers', {
  postgres: 'DELETE FROM ichido.triggers WHERE id = ANY($1::uuid[]) RETURNING id',
  sqlite: 'DELETE FROM ichido.triggers WHERE id = $1 RETURNING id',
})
