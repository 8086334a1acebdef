import type { MinuteCount, MinuteSum } from '../../core/limits/minute-counts.ts'
import { type Command, command } from '../port.ts'
import { each, integer, now, query, text, type Work } from '../statement.ts'
import { fence, type Term } from './leadership.ts'
import * as sql from './minute-counts.sql.ts'

export interface MinuteBatch {
  minute: number
  nodeId: string
  /** Higher than that of the batch before, and the same when it is tried again. */
  batchN: number
  counts: ReadonlyMap<MinuteCount, number>
}

export function addMinuteCounts({ minute, nodeId, batchN, counts }: MinuteBatch): Command<void> {
  const rows = [...counts].sort().map(([name, count]) => [minute, name, nodeId, batchN, count])
  return command('add_minute_counts', function* work(): Work<void> {
    yield* each(sql.addMinuteCounts, rows)
  })
}

/** What has been counted for so long, and the store's clock. */
export function findMinuteCounts(ageMs: number): Command<{ sums: MinuteSum[]; nowMs: number }> {
  return command('find_minute_counts', function* work() {
    const nowMs = yield* now()
    const rows = yield* query(sql.readMinuteCounts, Math.ceil(ageMs))
    const sums = rows.map((row) => ({
      minute: integer(row, 'minute'),
      name: text(row, 'name') as MinuteCount,
      count: integer(row, 'count'),
    }))
    return { sums, nowMs }
  })
}

export function removeMinuteCounts(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_minute_counts', function* work(): Work<number> {
    return (yield* query(sql.removeMinuteCounts, ...fence(term), max, Math.ceil(ageMs))).length
  })
}
