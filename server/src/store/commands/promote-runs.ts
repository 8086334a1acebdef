import { type Command, command } from '../port.ts'
import { lockDue, nextDue, promoteRuns } from '../sql/runs.ts'
import { each, integer, integerOrNull, one, query, type SqlValue, text, type Work } from '../statement.ts'

export interface Promoted {
  /** Queues that have work now. */
  queues: string[]
  /** How many were moved: as many as allowed means that more may wait. */
  count: number
  /** Until the next delayed run is due; null when none waits. */
  nextInMs: number | null
}

/** Where in its queue a run is to stand that has become due. Asked in the order in which they became so. */
export type TagOf = (run: { queue: string; userId: string; priority: number; runAtMs: number }) => number

/** Delayed runs whose time has come enter their queue; any node may do it. */
export function promoteDue(max: number, tagOf: TagOf): Command<Promoted> {
  return command('promote', function* work(): Work<Promoted> {
    const due = yield* query(lockDue, max)
    const rows = due.map((row): SqlValue[] => {
      const [queue, userId, runAtMs] = [text(row, 'queue'), text(row, 'user_id'), integer(row, 'run_at')]
      return [text(row, 'id'), tagOf({ queue, userId, runAtMs, priority: integer(row, 'priority') })]
    })
    yield* each(promoteRuns, rows)
    const next = yield* one(nextDue)
    return {
      queues: [...new Set(due.map((row) => text(row, 'queue')))],
      count: rows.length,
      nextInMs: integerOrNull(next, 'in_ms'),
    }
  })
}
