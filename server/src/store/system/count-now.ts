import type { MinuteCount } from '../../core/limits/minute-counts.ts'
import { query, type Work } from '../statement.ts'
import { countNow as count } from './minute-counts.sql.ts'

/**
 * Counts in the transaction that does the counted thing, so that nothing is missed or counted twice. It is the last step: all
 * nodes share the row of a minute, and a transaction that holds the row must not wait for another lock.
 */
export function* countNow(name: MinuteCount, times: number): Work<void> {
  if (times > 0) yield* query(count, { name, count: times })
}
