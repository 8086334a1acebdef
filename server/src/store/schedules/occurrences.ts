import { RUN_STATES, type RunState } from '../../core/run/run-state.ts'
import { ORIGINS, type Origin, OUTCOMES, type Outcome } from '../../core/schedule/ticks.ts'
import { type Command, command } from '../port.ts'
import { JOB_IN_ROOMS, STATE } from '../runs/rooms.sql.ts'
import { each, exactlyOne, query, type RowOf, statement, type Work } from '../statement.ts'

const known = (id: string, tick: string) => `(
  EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = ${id} AND o.scheduled_for = ${tick})
  OR EXISTS (SELECT 1 FROM ichido.occurrences o WHERE o.definition_id = ${id} AND o.skipped_until IS NOT NULL
    AND o.scheduled_for <= ${tick} AND o.skipped_until >= ${tick}))`

/** A skip of many ticks may include a tick whose job was made. */
const skipped = (id: string, tick: string) => `NOT EXISTS (SELECT 1 FROM ichido.occurrences o
  WHERE o.definition_id = ${id} AND o.scheduled_for = ${tick} AND o.outcome <> 'skipped')`

/** Returns the ticks in the ledger, alone or within a skip of many, and whether they were skipped. */
const readKnownTicks = statement('read_known_ticks', {
  params: { definition_id: 'text', tick: 'integer' },
  row: { tick: 'integer', skipped: 'flag' },
  postgres: `SELECT t.tick, ${skipped('t.id', 't.tick')} AS skipped
    FROM unnest($definition_id::uuid[], $tick::bigint[]) AS t(id, tick)
    WHERE ${known('t.id', 't.tick')}`,
  sqlite: `SELECT $tick AS tick, ${skipped('$definition_id', '$tick')} AS skipped WHERE ${known('$definition_id', '$tick')}`,
})

/** Newest first; `to_at` is exclusive. */
const readOccurrences = statement('read_occurrences', {
  params: { definition_id: 'text', from_at: 'integer', to_at: 'integer', max: 'integer' },
  row: {
    scheduled_for: 'integer',
    outcome: { passOn: OUTCOMES },
    job_id: 'text?',
    job_state: 'text?',
    reason: 'text?',
    origin: { passOn: ORIGINS },
    skipped_until: 'integer?',
    created_at: 'integer',
    updated_at: 'integer',
  },
  sql: `SELECT scheduled_for, outcome, job_id, (SELECT ${STATE} FROM ${JOB_IN_ROOMS} WHERE j.id = o.job_id) AS job_state,
      reason, origin, skipped_until, o.created_at, updated_at
    FROM ichido.occurrences o WHERE definition_id = $definition_id AND scheduled_for >= $from_at AND scheduled_for < $to_at
    ORDER BY scheduled_for DESC LIMIT $max`,
})

const countSchedules = statement('count_schedules', {
  params: { late_ms: 'integer' },
  row: { overdue: 'integer', waiting: 'integer' },
  sql: `SELECT (SELECT count(*) FROM ichido.job_definitions
      WHERE next_tick_at IS NOT NULL AND paused_at IS NULL AND next_tick_at < (SELECT now_ms()) - $late_ms) AS overdue,
    (SELECT count(*) FROM ichido.occurrences WHERE outcome IN ('waiting_quota', 'waiting_overlap')) AS waiting`,
})

/** The ledger's entry of a tick. */
export interface Occurrence {
  scheduledForMs: number
  outcome: Outcome
  jobId: string | null
  /** Null: there is no job, or it was removed. */
  jobState: RunState | null
  reason: string | null
  origin: Origin
  skippedUntilMs: number | null
  createdAtMs: number
  updatedAtMs: number
}

interface LedgerPage {
  /** Newest first. */
  recorded: Occurrence[]
  /** The expected ticks without an entry. */
  unrecorded: number[]
}

/** @param expected ticks of the rule in the range */
export function findOccurrences(
  definitionId: string,
  range: { fromMs: number; toMs: number; max: number },
  expected: readonly number[],
): Command<LedgerPage> {
  return command('find_occurrences', function* work(): Work<LedgerPage> {
    const { fromMs, toMs, max } = range
    const params = { definition_id: definitionId, from_at: fromMs, to_at: toMs, max }
    const rows = yield* query(readOccurrences, params)
    const known = yield* readKnown(definitionId, expected)
    return { recorded: rows.map(toOccurrence), unrecorded: expected.filter((tick) => !known.has(tick)) }
  })
}

/** Finds those of the ticks that are in the ledger. */
export function findKnown(definitionId: string, ticks: readonly number[]): Command<Map<number, Known>> {
  return command('find_known_ticks', () => readKnown(definitionId, ticks))
}

/** Counts overdue schedules and waiting ticks. */
export function readScheduleCounts(lateMs: number): Command<{ overdue: number; waiting: number }> {
  return command('count_schedules', function* work() {
    return yield* exactlyOne(countSchedules, { late_ms: lateMs })
  })
}

function toOccurrence(row: RowOf<typeof readOccurrences>): Occurrence {
  return {
    scheduledForMs: row.scheduled_for,
    outcome: row.outcome,
    jobId: row.job_id,
    jobState: RUN_STATES.find((state) => state === row.job_state) ?? null,
    reason: row.reason,
    origin: row.origin,
    skippedUntilMs: row.skipped_until,
    createdAtMs: row.created_at,
    updatedAtMs: row.updated_at,
  }
}

type Known = 'made' | 'skipped'

/** Finds those of the ticks that are in the ledger. A waiting tick counts as made. */
export function* readKnown(definitionId: string, ticks: readonly number[]): Work<Map<number, Known>> {
  const rows = yield* each(
    readKnownTicks,
    ticks.map((tick) => ({ definition_id: definitionId, tick })),
  )
  return new Map(rows.map(({ tick, skipped }) => [tick, skipped ? 'skipped' : 'made']))
}
