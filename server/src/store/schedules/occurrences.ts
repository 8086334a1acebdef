import type { Outcome } from '../../core/schedule/ticks.ts'
import { type Command, command } from '../port.ts'
import { integer, integerOrNull, one, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import { countSchedules, readOccurrences } from './backfills.sql.ts'
import { type Known, readKnown } from './backfills.ts'

/** What the ledger says of a tick. */
export interface Occurrence {
  scheduledForMs: number
  outcome: Outcome
  jobId: string | null
  reason: string | null
  origin: 'schedule' | 'backfill'
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
    const rows = yield* query(readOccurrences, definitionId, range.fromMs, range.toMs, range.max)
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
    const row = yield* one(countSchedules, lateMs)
    return { overdue: integer(row, 'overdue'), waiting: integer(row, 'waiting') }
  })
}

function toOccurrence(row: Row): Occurrence {
  return {
    scheduledForMs: integer(row, 'scheduled_for'),
    outcome: text(row, 'outcome') as Outcome,
    jobId: textOrNull(row, 'job_id'),
    reason: textOrNull(row, 'reason'),
    origin: text(row, 'origin') as Occurrence['origin'],
    skippedUntilMs: integerOrNull(row, 'skipped_until'),
    createdAtMs: integer(row, 'created_at'),
    updatedAtMs: integer(row, 'updated_at'),
  }
}
