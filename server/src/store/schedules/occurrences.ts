import type { Origin, Outcome } from '../../core/schedule/ticks.ts'
import { type Command, command } from '../port.ts'
import { exactlyOne, query, type RowOf, type Work } from '../statement.ts'
import { countSchedules, readOccurrences } from './backfills.sql.ts'
import { type Known, readKnown } from './backfills.ts'

/** What the ledger says of a tick. */
export interface Occurrence {
  scheduledForMs: number
  outcome: Outcome
  jobId: string | null
  reason: string | null
  origin: Origin
  skippedUntilMs: number | null
  createdAtMs: number
  updatedAtMs: number
}

export interface LedgerPage {
  /** Newest first. */
  recorded: Occurrence[]
  /** Of the ticks that were asked about, those that no entry tells of. */
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

/** Of these ticks, those that are in the ledger. */
export function findKnown(definitionId: string, ticks: readonly number[]): Command<Map<number, Known>> {
  return command('find_known_ticks', () => readKnown(definitionId, ticks))
}

/** Schedules whose tick is later than it may be, and ticks that wait. */
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
    reason: row.reason,
    origin: row.origin,
    skippedUntilMs: row.skipped_until,
    createdAtMs: row.created_at,
    updatedAtMs: row.updated_at,
  }
}
