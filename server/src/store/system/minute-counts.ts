import type { MinuteCount, MinuteSum } from '../../core/limits/minute-counts.ts'
import { type Command, command } from '../port.ts'
import { each, now, query, type Work } from '../statement.ts'
import type { Term } from './leadership.ts'
import * as sql from './minute-counts.sql.ts'

export interface MinuteBatch {
  minute: number
  nodeId: string
  /** Higher than that of the batch before, and the same when it is tried again. */
  batchN: number
  counts: ReadonlyMap<MinuteCount, number>
}

export function addMinuteCounts({ minute, nodeId, batchN, counts }: MinuteBatch): Command<void> {
  const rows = [...counts].sort().map(([name, count]) => ({ minute, name, counted_by: nodeId, batch_n: batchN, count }))
  return command('add_minute_counts', function* work(): Work<void> {
    yield* each(sql.addMinuteCounts, rows)
  })
}

/** The sums of the last `ageMs`, and the store's clock. */
export function findMinuteCounts(ageMs: number): Command<{ sums: MinuteSum[]; nowMs: number }> {
  return command('find_minute_counts', function* work() {
    const nowMs = yield* now()
    return { sums: yield* query(sql.readMinuteCounts, { age_ms: Math.ceil(ageMs) }), nowMs }
  })
}

export function removeMinuteCounts(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_minute_counts', function* work(): Work<number> {
    return (yield* query(sql.removeMinuteCounts, { ...term, max, age_ms: Math.ceil(ageMs) })).length
  })
}
