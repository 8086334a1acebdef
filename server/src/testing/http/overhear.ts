import type { Command } from '../../store/port.ts'
import type { Row, Step, Work } from '../../store/statement.ts'

/** Runs the command step by step in a transaction, and calls `hear` with each step and its rows. */
export function overhear<T>(
  { name, lane, work }: Command<T>,
  hear: (step: Step, rows: readonly Row[]) => void,
): Command<T> {
  return {
    name,
    lane,
    *work(again): Work<T> {
      const inner = work(again)
      let next = inner.next()
      while (!next.done) {
        const rows = yield next.value
        hear(next.value, rows)
        next = inner.next(rows)
      }
      return next.value
    },
  }
}
