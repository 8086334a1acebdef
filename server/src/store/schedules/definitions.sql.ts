import { statement } from '../statement.ts'

export const DEFINITION_COLUMNS = `id, name, user_id, kind, queue, payload, policy, priority, labels, domain, stages, seq_scope,
  schedule, on_trigger, paused_at, version, next_tick_at, last_tick_at, created_at, updated_at`

/** Takes a name. */
export const findDefinition = statement(
  'find_definition',
  `SELECT ${DEFINITION_COLUMNS} FROM ichido.job_definitions WHERE name = $1`,
)

/** Takes a name. Ticks and other changes of it wait. */
export const lockDefinition = statement('lock_definition', {
  postgres: `SELECT ${DEFINITION_COLUMNS} FROM ichido.job_definitions WHERE name = $1 FOR UPDATE`,
  sqlite: `SELECT ${DEFINITION_COLUMNS} FROM ichido.job_definitions WHERE name = $1`,
})

/**
 * Takes id, name, user, kind, queue, payload, policy, priority, labels, domain, stages, scope of seq, schedule, topic, rule
 * for triggers, next tick.
 * Answers with nothing when the name is taken.
 */
export const insertDefinition = statement(
  'insert_definition',
  `INSERT INTO ichido.job_definitions (id, name, user_id, kind, queue, payload, policy, priority, labels, domain, stages,
      seq_scope, schedule, topic, on_trigger, next_tick_at, created_at, updated_at)
    VALUES ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11, $12, $13, $14, $15, $16, now_ms(), now_ms())
    ON CONFLICT (name) DO NOTHING RETURNING ${DEFINITION_COLUMNS}`,
)

/** Takes id, version, then as above from kind on. Answers with nothing when another change came first. */
export const updateDefinition = statement(
  'update_definition',
  `UPDATE ichido.job_definitions SET kind = $3, queue = $4, payload = $5, policy = $6, priority = $7, labels = $8,
      domain = $9, stages = $10, seq_scope = $11, schedule = $12, topic = $13, on_trigger = $14,
      next_tick_at = $15, version = version + 1, updated_at = now_ms()
    WHERE id = $1 AND version = $2 RETURNING ${DEFINITION_COLUMNS}`,
)

/** Takes id, version. */
export const pauseDefinition = statement(
  'pause_definition',
  `UPDATE ichido.job_definitions SET paused_at = now_ms(), version = version + 1, updated_at = now_ms()
    WHERE id = $1 AND version = $2 AND paused_at IS NULL RETURNING ${DEFINITION_COLUMNS}`,
)

/** Takes id, version, next tick. */
export const resumeDefinition = statement(
  'resume_definition',
  `UPDATE ichido.job_definitions SET paused_at = NULL, next_tick_at = $3, version = version + 1, updated_at = now_ms()
    WHERE id = $1 AND version = $2 AND paused_at IS NOT NULL RETURNING ${DEFINITION_COLUMNS}`,
)

/** Takes a definition's id, a first and a last tick, and a maximum: those of the ledger, oldest first. */
export const readTicks = statement(
  'read_ticks',
  `SELECT scheduled_for FROM ichido.occurrences WHERE definition_id = $1 AND scheduled_for BETWEEN $2 AND $3
    ORDER BY scheduled_for LIMIT $4`,
)

/** Takes id, version. */
export const deleteDefinition = statement(
  'delete_definition',
  'DELETE FROM ichido.job_definitions WHERE id = $1 AND version = $2 RETURNING id',
)

/** Takes a definition's id. The ledger stays; what waited in it has nothing to wait for any more. */
export const dropWaitingTicks = statement(
  'drop_waiting_ticks',
  `UPDATE ichido.occurrences SET outcome = 'skipped', reason = 'deleted', updated_at = now_ms()
    WHERE definition_id = $1 AND outcome IN ('waiting_quota', 'waiting_overlap')`,
)

/** Takes a limit and the id that the page before ended with. Newest first. */
export const listDefinitions = statement(
  'list_definitions',
  `SELECT ${DEFINITION_COLUMNS} FROM ichido.job_definitions WHERE id < $2 ORDER BY id DESC LIMIT $1`,
)
