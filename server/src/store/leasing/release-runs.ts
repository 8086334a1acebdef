import {
  RELEASED_OUTCOME,
  type RunCommand,
  type RunError,
  type RunRefusal,
  type RunState,
} from '../../core/run/run-state.ts'
import { type Command, commandIn } from '../port.ts'
import { followFailures } from '../runs/after-failure.ts'
import { explainRefusal, type FactsRow, factsOf, tryOnePerRun } from '../runs/run-facts.ts'
import { releaseRuns } from '../runs/runs.sql.ts'
import { each, type RowOf, type Work } from '../statement.ts'

export interface ReleaseItem {
  runId: string
  workerId: string
  leaseId: string
  /** Made before the transaction, for the run after a run that had started. */
  nextRunId: string
}

export type ReleaseOutcome =
  /** `queue` has work again; null when the job has ended. */
  | { kind: 'released' | 'repeated'; jobId: string; state: RunState; queue: string | null }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

const RELEASED: RunError = { code: 'RELEASED', message: 'The worker gave the run back' }

/** Workers give runs back, for example at their shutdown. It costs the job no retry. */
export function releaseBatch(items: readonly ReleaseItem[]): Command<ReleaseOutcome[]> {
  return commandIn('batches', 'release', function* work(): Work<ReleaseOutcome[]> {
    function* attempt(firsts: readonly ReleaseItem[]): Work<Map<string, ReleasedRow>> {
      const error = JSON.stringify(RELEASED)
      const rows = firsts.map((item) => ({
        run_id: item.runId,
        worker_id: item.workerId,
        lease_id: item.leaseId,
        error,
        outcome_hash: RELEASED_OUTCOME,
      }))
      return new Map((yield* each(releaseRuns, rows)).map((row) => [row.id, row]))
    }
    const { changed, missed } = yield* tryOnePerRun(items, attempt, commandOf)
    yield* followFailures(
      changed.flatMap(([{ nextRunId }, row]) =>
        row.state === 'FAILED' ? [{ row, error: RELEASED, retryable: true, released: true, nextRunId, random: 0 }] : [],
      ),
    )
    const facts = yield* factsOf(missed)
    const outcomes = new Map(missed.map((item) => [item, explained(item, facts.get(item.runId))]))
    for (const [item, row] of changed) outcomes.set(item, released(row))
    return items.flatMap((item) => outcomes.get(item) ?? [])
  })
}

type ReleasedRow = RowOf<typeof releaseRuns>

function released({ job_id, state, queue }: ReleasedRow): ReleaseOutcome {
  return { kind: 'released', jobId: job_id, state, queue: state === 'CANCELED' ? null : queue }
}

function commandOf({ workerId, leaseId }: ReleaseItem): RunCommand {
  return { verb: 'release', workerId, leaseId }
}

function explained(item: ReleaseItem, row: FactsRow | undefined): ReleaseOutcome {
  if (row === undefined) return { kind: 'refused', reason: 'NOT_FOUND' }
  const reason = explainRefusal(row, commandOf(item))
  if (reason !== 'repeat') return { kind: 'refused', reason }
  return { kind: 'repeated', jobId: row.job_id, state: row.state, queue: null }
}
