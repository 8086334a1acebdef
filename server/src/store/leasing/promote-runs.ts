import { type Command, command } from '../port.ts'
import { lockDue, nextDue, promoteRuns } from '../runs/runs.sql.ts'
import { each, one, query, type Work } from '../statement.ts'
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
    const due = yield* query(lockDue, { max })
    const tags = yield* tagsFor(
      due.map((row) => ({
        queue: row.queue,
        userId: row.user_id,
        priority: row.priority,
        runAtMs: row.run_at,
      })),
    )
    yield* each(
      promoteRuns,
      due.map(({ id }, i) => ({ id, tag: tags[i] ?? null })),
    )
    const next = yield* one(nextDue, {})
    return {
      queues: [...new Set(due.map((row) => row.queue))],
      count: due.length,
      nextInMs: next?.in_ms ?? null,
    }
  })
}
