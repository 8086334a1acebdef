import { periodStartMs } from '../../core/limits/quota.ts'
import { addSpent, readRefunds } from '../limits/quotas.sql.ts'
import { each, type ParamsOf, type Work } from '../statement.ts'

interface CostChange {
  userId: string
  /** The creation time of the run that was charged. A correction goes to the same day and month. */
  chargedAtMs: number
  micros: number
}

/** Counts both the day and the month, so that a quota can change its period at any time. */
export function* changeCosts(changes: readonly CostChange[]): Work<void> {
  const sums = new Map<string, ParamsOf<typeof addSpent>>()
  for (const { userId, chargedAtMs, micros } of changes) {
    if (micros === 0) continue
    for (const period of ['day', 'month'] as const) {
      const start = periodStartMs(period, chargedAtMs)
      const name = JSON.stringify([userId, period, start])
      const spent = (sums.get(name)?.spent_micros ?? 0) + micros
      sums.set(name, { user_id: userId, period, period_start: start, spent_micros: spent })
    }
  }
  const rows = [...sums.entries()].sort(([a], [b]) => (a < b ? -1 : 1)).map(([, row]) => row)
  yield* each(addSpent, rows)
}

/** For jobs that were just canceled: a job that never started costs nothing. */
export function* giveBack(jobIds: readonly string[]): Work<void> {
  const refunds = yield* each(
    readRefunds,
    jobIds.map((job_id) => ({ job_id })),
  )
  yield* changeCosts(
    refunds.map((row) => ({
      userId: row.user_id,
      chargedAtMs: row.charged_at,
      micros: -row.estimated_cost_micros,
    })),
  )
}
