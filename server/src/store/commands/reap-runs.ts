import type { RunState } from '../../core/run-state.ts'
import { type Command, command } from '../port.ts'
import { expireRuns, forsakeRuns, orphanRuns } from '../sql/leader.ts'
import { query, text, type Work } from '../statement.ts'
import { followFailures, type RunError } from './after-failure.ts'
import { recordMoves } from './lifecycle.ts'

export interface Reaped {
  /** Queues that have work again. */
  queues: string[]
  ended: { jobId: string; state: RunState }[]
}

export interface ReapItem {
  continuationMs: number
  /** One for each run that may end here; their number is the batch's maximum. */
  spares: readonly { nextRunId: string; random: number }[]
}

const LOST: RunError = { code: 'WORKER_LOST', message: 'The worker was not heard of until its lease ran out' }

/** Takes back what workers left behind. Each look at the lease is in the writing statement's own WHERE. */
export function reapRuns({ continuationMs, spares }: ReapItem): Command<Reaped> {
  return command('reap', function* work(): Work<Reaped> {
    const orphaned = yield* query(orphanRuns, spares.length)
    yield* recordMoves(orphaned)
    const ended = yield* query(expireRuns, spares.length, continuationMs, JSON.stringify(LOST))
    yield* recordMoves(ended)
    const failures = ended.flatMap((row, i) => {
      const spare = spares[i]
      return text(row, 'state') === 'TIMED_OUT' && spare ? [{ row, error: LOST, retryable: true, ...spare }] : []
    })
    yield* followFailures(failures)
    return {
      queues: [...new Set(orphaned.map((row) => text(row, 'queue')))],
      ended: ended.map((row) => ({ jobId: text(row, 'job_id'), state: text(row, 'state') as RunState })),
    }
  })
}

/** What workers of an earlier process hold is free for the next reap, without waiting for leases that nobody extends. */
export function forsakeWorkers(prefix: string): Command<number> {
  return command('forsake', function* work(): Work<number> {
    return (yield* query(forsakeRuns, prefix)).length
  })
}
