import { isStages, SEQ_SCOPES } from '../../core/events/event.ts'
import { isMapOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { parsePolicy } from '../../core/run/job.ts'
import { isSchedule } from '../../core/schedule/schedule.ts'
import { isTriggerRule } from '../../core/schedule/trigger.ts'
import { statement } from '../statement.ts'

const seqScope = { oneOf: SEQ_SCOPES } as const

export const DEFINITION_ROW = {
  id: 'text',
  name: 'text',
  user_id: 'text',
  kind: 'text',
  queue: 'text?',
  payload: 'text',
  policy: { json: parsePolicy },
  priority: 'integer',
  labels: { json: stored('labels', orNull(isMapOf(isText))) },
  domain: 'text?',
  stages: { json: stored('stages', orNull(isStages)) },
  seq_scope: seqScope,
  schedule: { json: stored('schedule', orNull(isSchedule)) },
  on_trigger: { json: stored('trigger rule', orNull(isTriggerRule)) },
  paused_at: 'integer?',
  version: 'integer',
  next_tick_at: 'integer?',
  last_tick_at: 'integer?',
  created_at: 'integer',
  updated_at: 'integer',
} as const

const COLUMNS = Object.keys(DEFINITION_ROW).join(', ')

/** The same columns of a table `d`. */
export const COLUMNS_OF_D = Object.keys(DEFINITION_ROW)
  .map((column) => `d.${column}`)
  .join(', ')

/** Policy, labels, stages, schedule and rule are JSON. */
const CONTENT = {
  kind: 'text',
  queue: 'text?',
  payload: 'text',
  policy: 'text',
  priority: 'integer',
  labels: 'text?',
  domain: 'text?',
  stages: 'text?',
  seq_scope: seqScope,
  schedule: 'text?',
  topic: 'text?',
  on_trigger: 'text?',
  next_tick_at: 'integer?',
} as const

export const findDefinition = statement('find_definition', {
  params: { name: 'text' },
  row: DEFINITION_ROW,
  sql: `SELECT ${COLUMNS} FROM ichido.job_definitions WHERE name = $name`,
})

export const readDefinition = statement('read_definition', {
  params: { id: 'text' },
  row: DEFINITION_ROW,
  sql: `SELECT ${COLUMNS} FROM ichido.job_definitions WHERE id = $id`,
})

/** Ticks and other changes of the definition wait. */
export const lockDefinition = statement('lock_definition', {
  params: { name: 'text' },
  row: DEFINITION_ROW,
  postgres: `SELECT ${COLUMNS} FROM ichido.job_definitions WHERE name = $name FOR UPDATE`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.job_definitions WHERE name = $name`,
})

/** Returns no row when the name is taken. */
export const insertDefinition = statement('insert_definition', {
  params: { id: 'text', name: 'text', user_id: 'text', ...CONTENT },
  row: DEFINITION_ROW,
  sql: `INSERT INTO ichido.job_definitions (id, name, user_id, kind, queue, payload, policy, priority, labels, domain, stages,
      seq_scope, schedule, topic, on_trigger, next_tick_at, created_at, updated_at)
    VALUES ($id, $name, $user_id, $kind, $queue, $payload, $policy, $priority, $labels, $domain, $stages,
      $seq_scope, $schedule, $topic, $on_trigger, $next_tick_at, now_ms(), now_ms())
    ON CONFLICT (name) DO NOTHING RETURNING ${COLUMNS}`,
})

/** Returns no row when another change came first. */
export const updateDefinition = statement('update_definition', {
  params: { id: 'text', version: 'integer', ...CONTENT },
  row: DEFINITION_ROW,
  sql: `UPDATE ichido.job_definitions SET kind = $kind, queue = $queue, payload = $payload, policy = $policy,
      priority = $priority, labels = $labels, domain = $domain, stages = $stages, seq_scope = $seq_scope,
      schedule = $schedule, topic = $topic, on_trigger = $on_trigger,
      next_tick_at = $next_tick_at, version = version + 1, updated_at = now_ms()
    WHERE id = $id AND version = $version RETURNING ${COLUMNS}`,
})

export const pauseDefinition = statement('pause_definition', {
  params: { id: 'text', version: 'integer' },
  row: DEFINITION_ROW,
  sql: `UPDATE ichido.job_definitions SET paused_at = now_ms(), version = version + 1, updated_at = now_ms()
    WHERE id = $id AND version = $version AND paused_at IS NULL RETURNING ${COLUMNS}`,
})

export const resumeDefinition = statement('resume_definition', {
  params: { id: 'text', version: 'integer', next_tick_at: 'integer?' },
  row: DEFINITION_ROW,
  sql: `UPDATE ichido.job_definitions SET paused_at = NULL, next_tick_at = $next_tick_at, version = version + 1,
      updated_at = now_ms()
    WHERE id = $id AND version = $version AND paused_at IS NOT NULL RETURNING ${COLUMNS}`,
})

/** The ticks of the ledger from `first` to `last`, oldest first. */
export const readTicks = statement('read_ticks', {
  params: { definition_id: 'text', first: 'integer', last: 'integer', max: 'integer' },
  row: { scheduled_for: 'integer' },
  sql: `SELECT scheduled_for FROM ichido.occurrences
    WHERE definition_id = $definition_id AND scheduled_for BETWEEN $first AND $last
    ORDER BY scheduled_for LIMIT $max`,
})

export const deleteDefinition = statement('delete_definition', {
  params: { id: 'text', version: 'integer' },
  row: { id: 'text' },
  sql: 'DELETE FROM ichido.job_definitions WHERE id = $id AND version = $version RETURNING id',
})

/** The ledger stays. Its waiting ticks are skipped, because no job can be made of them. */
export const dropWaitingTicks = statement('drop_waiting_ticks', {
  params: { definition_id: 'text' },
  row: {},
  sql: `UPDATE ichido.occurrences SET outcome = 'skipped', reason = 'deleted', updated_at = now_ms()
    WHERE definition_id = $definition_id AND outcome IN ('waiting_quota', 'waiting_overlap')`,
})

/** Newest first. The page before ended with the id `after`. */
export const listDefinitions = statement('list_definitions', {
  params: { limit: 'integer', after: 'text' },
  row: DEFINITION_ROW,
  sql: `SELECT ${COLUMNS} FROM ichido.job_definitions WHERE id < $after ORDER BY id DESC LIMIT $limit`,
})
