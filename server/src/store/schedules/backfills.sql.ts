import { BACKFILL_STATES } from '@ichido/sdk/protocol'
import { stored } from '../../core/json/stored-json.ts'
import { isSchedule } from '../../core/schedule/schedule.ts'
import { ORIGINS, OUTCOMES } from '../../core/schedule/ticks.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/leadership.sql.ts'

const state = { oneOf: BACKFILL_STATES } as const

export const BACKFILL_ROW = {
  id: 'text',
  definition_id: 'text',
  actor: 'text',
  from_at: 'integer',
  to_at: 'integer',
  at: 'integer',
  schedule: { json: stored('schedule', isSchedule) },
  state,
  version: 'integer',
  matched: 'integer',
  made: 'integer',
  made_before: 'integer',
  skipped: 'integer',
  began_at: 'integer',
  ended_at: 'integer?',
} as const

const BACKFILL = Object.keys(BACKFILL_ROW).join(', ')

/** `matched`: how many ticks of the schedule lie between. The schedule is JSON. */
export const insertBackfill = statement('insert_backfill', {
  params: {
    id: 'text',
    definition_id: 'text',
    actor: 'text',
    from_at: 'integer',
    to_at: 'integer',
    schedule: 'text',
    matched: 'integer',
  },
  row: {},
  sql: `INSERT INTO ichido.backfills (${BACKFILL})
    VALUES ($id, $definition_id, $actor, $from_at, $to_at, $from_at, $schedule, 'running', 1, $matched, 0, 0, 0, now_ms(), NULL)
    ON CONFLICT (id) DO NOTHING`,
})

export const readBackfill = statement('read_backfill', {
  params: { id: 'text' },
  row: BACKFILL_ROW,
  sql: `SELECT ${BACKFILL} FROM ichido.backfills WHERE id = $id`,
})

/** Newest first. The page before ended with the id `after`. */
export const listBackfills = statement('list_backfills', {
  params: { definition_id: 'text', limit: 'integer', after: 'text' },
  row: BACKFILL_ROW,
  sql: `SELECT ${BACKFILL} FROM ichido.backfills WHERE definition_id = $definition_id AND id < $after
    ORDER BY id DESC LIMIT $limit`,
})

/** Oldest first, from the id `after` on. */
export const readRunningBackfills = statement('read_running_backfills', {
  params: { max: 'integer', after: 'text' },
  row: BACKFILL_ROW,
  sql: `SELECT ${BACKFILL} FROM ichido.backfills WHERE state = 'running' AND id > $after ORDER BY id LIMIT $max`,
})

/** Locks a definition that still has the version it was seen at. Its ticks wait meanwhile. */
export const lockDefinition = statement('lock_definition_version', {
  params: { id: 'text', version: 'integer' },
  row: { now: 'integer' },
  postgres: 'SELECT now_ms() AS now FROM ichido.job_definitions WHERE id = $id AND version = $version FOR UPDATE',
  sqlite: 'SELECT now_ms() AS now FROM ichido.job_definitions WHERE id = $id AND version = $version',
})

/** Guards the version that the backfill was seen at: of two leaders that go on with it at once, one takes this step. */
export const takeBackfillStep = statement('take_backfill_step', {
  params: { ...TERM, id: 'text', version: 'integer' },
  row: { id: 'text' },
  postgres: `${LED}
    UPDATE ichido.backfills b SET version = b.version + 1 FROM l
    WHERE b.id = $id AND b.version = $version AND b.state = 'running' RETURNING b.id`,
  sqlite: `UPDATE ichido.backfills SET version = version + 1
    WHERE id = $id AND version = $version AND state = 'running' AND ${LED_SQLITE} RETURNING id`,
})

/** `at`: the instant to go on from. Adds the ticks that this step has made, found made and found skipped. */
export const recordBackfillStep = statement('record_backfill_step', {
  params: { id: 'text', at: 'integer', made: 'integer', made_before: 'integer', skipped: 'integer' },
  row: {},
  sql: `UPDATE ichido.backfills SET at = $at, made = made + $made, made_before = made_before + $made_before,
      skipped = skipped + $skipped
    WHERE id = $id`,
})

export const endBackfill = statement('end_backfill', {
  params: { id: 'text', state },
  row: BACKFILL_ROW,
  sql: `UPDATE ichido.backfills SET state = $state, version = version + 1, ended_at = now_ms()
    WHERE id = $id AND state = 'running' RETURNING ${BACKFILL}`,
})

const known = (id: string, tick: string) => `(
  EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = ${id} AND o.scheduled_for = ${tick})
  OR EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = ${id} AND o.skipped_until IS NOT NULL
    AND o.scheduled_for <= ${tick} AND o.skipped_until >= ${tick}))`

/** A skip that stands for many ticks may include one whose job was made. */
const skipped = (id: string, tick: string) => `NOT EXISTS (SELECT 1 FROM ichido.occurrences o
  WHERE o.definition_id = ${id} AND o.scheduled_for = ${tick} AND o.outcome <> 'skipped')`

/** Returns the ticks that are in the ledger, by themselves or within a skip of many, and whether they were skipped. */
export const readKnownTicks = statement('read_known_ticks', {
  params: { definition_id: 'text', tick: 'integer' },
  row: { tick: 'integer', skipped: 'flag' },
  postgres: `SELECT t.tick, ${skipped('t.id', 't.tick')} AS skipped
    FROM unnest($definition_id::uuid[], $tick::bigint[]) AS t(id, tick)
    WHERE ${known('t.id', 't.tick')}`,
  sqlite: `SELECT $tick AS tick, ${skipped('$definition_id', '$tick')} AS skipped WHERE ${known('$definition_id', '$tick')}`,
})

/** Newest first; `to_at` is exclusive. */
export const readOccurrences = statement('read_occurrences', {
  params: { definition_id: 'text', from_at: 'integer', to_at: 'integer', max: 'integer' },
  row: {
    scheduled_for: 'integer',
    outcome: { oneOf: OUTCOMES },
    job_id: 'text?',
    reason: 'text?',
    origin: { oneOf: ORIGINS },
    skipped_until: 'integer?',
    created_at: 'integer',
    updated_at: 'integer',
  },
  sql: `SELECT scheduled_for, outcome, job_id, reason, origin, skipped_until, created_at, updated_at FROM ichido.occurrences
    WHERE definition_id = $definition_id AND scheduled_for >= $from_at AND scheduled_for < $to_at
    ORDER BY scheduled_for DESC LIMIT $max`,
})

export const countSchedules = statement('count_schedules', {
  params: { late_ms: 'integer' },
  row: { overdue: 'integer', waiting: 'integer' },
  sql: `SELECT (SELECT count(*) FROM ichido.job_definitions
      WHERE next_tick_at IS NOT NULL AND paused_at IS NULL AND next_tick_at < (SELECT now_ms()) - $late_ms) AS overdue,
    (SELECT count(*) FROM ichido.occurrences WHERE outcome IN ('waiting_quota', 'waiting_overlap')) AS waiting`,
})
