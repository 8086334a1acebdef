import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'
import { DEFINITION_COLUMNS } from './definitions.sql.ts'

export const BACKFILL_COLUMNS = `id, definition_id, actor, from_at, to_at, at, schedule, state, version, matched, made,
  made_before, skipped, began_at, ended_at`

/** Takes id, definition, actor, from, to, schedule, and how many of its ticks lie between. */
export const insertBackfill = statement(
  'insert_backfill',
  `INSERT INTO ichido.backfills (${BACKFILL_COLUMNS})
    VALUES ($1, $2, $3, $4, $5, $4, $6, 'running', 1, $7, 0, 0, 0, now_ms(), NULL)
    ON CONFLICT (id) DO NOTHING`,
)

export const readBackfill = statement('read_backfill', `SELECT ${BACKFILL_COLUMNS} FROM ichido.backfills WHERE id = $1`)

/** Takes a definition, a limit and the id that the page before ended with. Newest first. */
export const listBackfills = statement(
  'list_backfills',
  `SELECT ${BACKFILL_COLUMNS} FROM ichido.backfills WHERE definition_id = $1 AND id < $3 ORDER BY id DESC LIMIT $2`,
)

/** Takes a maximum and the id to go on after: those that run, oldest first. */
export const readRunningBackfills = statement(
  'read_running_backfills',
  `SELECT ${BACKFILL_COLUMNS} FROM ichido.backfills WHERE state = 'running' AND id > $2 ORDER BY id LIMIT $1`,
)

/** Takes a definition's id. */
export const readDefinition = statement(
  'read_definition',
  `SELECT ${DEFINITION_COLUMNS} FROM ichido.job_definitions WHERE id = $1`,
)

/** Takes a definition and the version it was seen at. Its ticks wait meanwhile. */
export const lockDefinition = statement('lock_definition_version', {
  postgres: 'SELECT now_ms() AS now FROM ichido.job_definitions WHERE id = $1 AND version = $2 FOR UPDATE',
  sqlite: 'SELECT now_ms() AS now FROM ichido.job_definitions WHERE id = $1 AND version = $2',
})

/** Takes epoch, holder, a backfill and the version it was seen at: of two that go on with it at once one takes this step. */
export const takeBackfillStep = statement('take_backfill_step', {
  postgres: `${LED}
    UPDATE ichido.backfills b SET version = b.version + 1 FROM l
    WHERE b.id = $3 AND b.version = $4 AND b.state = 'running' RETURNING b.id`,
  sqlite: `UPDATE ichido.backfills SET version = version + 1
    WHERE id = $3 AND version = $4 AND state = 'running' AND ${LED_SQLITE} RETURNING id`,
})

/** Takes a backfill, the instant to go on from, and how many ticks this step has made, found made and found skipped. */
export const recordBackfillStep = statement(
  'record_backfill_step',
  `UPDATE ichido.backfills SET at = $2, made = made + $3, made_before = made_before + $4, skipped = skipped + $5
    WHERE id = $1`,
)

/** Takes a backfill and its last state. */
export const endBackfill = statement(
  'end_backfill',
  `UPDATE ichido.backfills SET state = $2, version = version + 1, ended_at = now_ms()
    WHERE id = $1 AND state = 'running' RETURNING ${BACKFILL_COLUMNS}`,
)

const known = (id: string, tick: string) => `(
  EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = ${id} AND o.scheduled_for = ${tick})
  OR EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = ${id} AND o.skipped_until IS NOT NULL
    AND o.scheduled_for <= ${tick} AND o.skipped_until >= ${tick}))`

/** A skip that stands for many may go over a tick that was made. */
const skipped = (id: string, tick: string) => `NOT EXISTS (SELECT 1 FROM ichido.occurrences o
  WHERE o.definition_id = ${id} AND o.scheduled_for = ${tick} AND o.outcome <> 'skipped')`

/**
 * Takes definition and tick; answers with the ticks that are in the ledger, by themselves or among those of a skip, and
 * whether they were skipped.
 */
export const readKnownTicks = statement('read_known_ticks', {
  postgres: `SELECT t.tick, ${skipped('t.id', 't.tick')} AS skipped FROM unnest($1::uuid[], $2::bigint[]) AS t(id, tick)
    WHERE ${known('t.id', 't.tick')}`,
  sqlite: `SELECT $2 AS tick, ${skipped('$1', '$2')} AS skipped WHERE ${known('$1', '$2')}`,
})

/** Takes a definition, from, to (exclusive) and a limit. Newest first. */
export const readOccurrences = statement(
  'read_occurrences',
  `SELECT scheduled_for, outcome, job_id, reason, origin, skipped_until, created_at, updated_at FROM ichido.occurrences
    WHERE definition_id = $1 AND scheduled_for >= $2 AND scheduled_for < $3 ORDER BY scheduled_for DESC LIMIT $4`,
)

/** Takes how many ms a tick may be late. */
export const countSchedules = statement(
  'count_schedules',
  `SELECT (SELECT count(*) FROM ichido.job_definitions
      WHERE next_tick_at IS NOT NULL AND paused_at IS NULL AND next_tick_at < (SELECT now_ms()) - $1) AS overdue,
    (SELECT count(*) FROM ichido.occurrences WHERE outcome IN ('waiting_quota', 'waiting_overlap')) AS waiting`,
)
