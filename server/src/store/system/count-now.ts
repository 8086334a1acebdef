import type { MinuteCount } from '../../core/limits/minute-counts.ts'
import { query, type Work } from '../statement.ts'
import { countNow as count } from './minute-counts.sql.ts'

/**
 * Counts in the transaction in which it happens, so that nothing is missed or counted twice. As the last step: all nodes share
 * the row of a minute, and whoever holds it must not wait for another lock.
 */
export function* countNow(name: MinuteCount, times: number): Work<void> {
  if (times > 0) yield* query(count, name, times)
}
