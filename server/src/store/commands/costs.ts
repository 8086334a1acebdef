import { periodStartMs } from '../../core/quota.ts'
import { addSpent } from '../sql/quotas.ts'
import { each, type SqlValue, type Work } from '../statement.ts'

export interface CostChange {
  userId: string
  /** When the job was made: a correction goes to the day and month that the estimate was charged to. */
  createdAtMs: number
  micros: number
}

/** Both the day's and the month's counter are kept, so that a quota can change its period without forgetting. */
export function* changeCosts(changes: readonly CostChange[]): Work<void> {
  const sums = new Map<string, SqlValue[]>()
  for (const { userId, createdAtMs, micros } of changes) {
    if (micros === 0) continue
    for (const period of ['day', 'month'] as const) {
      const start = periodStartMs(period, createdAtMs)
      const name = JSON.stringify([userId, period, start])
      const sum = Number(sums.get(name)?.[3] ?? 0) + micros
      sums.set(name, [userId, period, start, sum])
    }
  }
  const rows = [...sums.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row)
  yield* each(addSpent, rows)
}
