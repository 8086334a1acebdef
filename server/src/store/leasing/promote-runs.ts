import { type Command, command } from '../port.ts'
import { lockDue, nextDue, promoteRuns } from '../runs/runs.sql.ts'
import { each, integer, integerOrNull, one, query, type SqlValue, text, type Work } from '../statement.ts'
import type { TagsFor } from './fair-tags.ts'

export interface Promoted {
  /** Queues that have work now. */
  queues: string[]
  /** How many were moved: as many as allowed means that more may wait. */
  count: number
  /** Until the next delayed run is due; null when none waits. */
  nextInMs: number | null
}

/** Delayed runs whose time has come enter their queue, in the order in which they became due; any node may do it. */
export function promoteDue(max: number, tagsFor: TagsFor): Command<Promoted> {
  return command('promote', function* work(): Work<Promoted> {
    const due = yield* query(lockDue, max)
    const tags = yield* tagsFor(
      due.map((row) => ({
        queue: text(row, 'queue'),
        userId: text(row, 'user_id'),
        priority: integer(row, 'priority'),
        runAtMs: integer(row, 'run_at'),
      })),
    )
    const rows = due.map((row, i): SqlValue[] => [text(row, 'id'), tags[i] ?? null])
    yield* each(promoteRuns, rows)
    const next = yield* one(nextDue)
    return {
      queues: [...new Set(due.map((row) => text(row, 'queue')))],
      count: rows.length,
      nextInMs: integerOrNull(next, 'in_ms'),
    }
  })
}
