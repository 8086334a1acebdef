import {
  RELEASED_OUTCOME,
  type RunCommand,
  type RunError,
  type RunRefusal,
  type RunState,
} from '../../core/run/run-state.ts'
import { type Command, commandIn } from '../port.ts'
import { type EndedRow, followFailures } from '../runs/after-failure.ts'
import { explainRefusal, type FactsRow, factsOf, tokenOf, tryOnePerJob } from '../runs/run-facts.ts'
import { finishRuns, releaseRuns } from '../runs/runs.sql.ts'
import { each, type Work } from '../statement.ts'

export interface ReleaseItem {
  jobId: string
  workerId: string
  leaseId: string
  /** Made before the transaction, for the run after a run that had started. */
  nextRunId: string
}

export type ReleaseOutcome =
  /** `queue` has work again; null when the job has ended. The run was in `releasedIn`. */
  | { kind: 'released'; jobId: string; state: RunState; queue: string | null; releasedIn: string; jobKind: string }
  | { kind: 'repeated'; jobId: string; state: RunState; queue: null }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

const RELEASED: RunError = { code: 'RELEASED', message: 'The worker gave the run back' }

/** Workers give runs back, for example at their shutdown. It costs the job no retry. */
export function releaseBatch(items: readonly ReleaseItem[]): Command<ReleaseOutcome[]> {
  return commandIn('batches', 'release', function* work(): Work<ReleaseOutcome[]> {
    const { changed, missed } = yield* tryOnePerJob(items, releaseOrEnd, commandOf)
    yield* followFailures(
      changed.flatMap(([{ nextRunId }, row]) =>
        row.state === 'FAILED' ? [{ row, error: RELEASED, retryable: true, released: true, nextRunId, random: 0 }] : [],
      ),
    )
    const facts = yield* factsOf(missed)
    const outcomes = new Map(missed.map((item) => [item, explained(item, facts.get(item.leaseId))]))
    for (const [item, row] of changed) outcomes.set(item, released(row))
    return items.flatMap((item) => outcomes.get(item) ?? [])
  })
}

type ReleasedRow = EndedRow & { readonly state: RunState }

/** An assigned run can be leased again. A run that has started ends, and its next run follows. */
function* releaseOrEnd(items: readonly ReleaseItem[]): Work<Map<string, ReleasedRow>> {
  const rows = items.map(({ jobId, workerId, leaseId }) => ({
    job_id: jobId,
    worker_id: workerId,
    token: tokenOf(leaseId),
  }))
  const released = new Map<string, ReleasedRow>()
  for (const row of yield* each(releaseRuns, rows)) released.set(row.job_id, row)
  const started = rows.filter((row) => !released.has(row.job_id))
  const ends = started.map((row) => ({ ...row, ...ENDED_BY_RELEASE }))
  for (const row of yield* each(finishRuns, ends)) released.set(row.job_id, row)
  return released
}

const ENDED_BY_RELEASE = {
  version: null,
  epoch: null,
  state: 'FAILED',
  outcome_hash: RELEASED_OUTCOME,
  error: JSON.stringify(RELEASED),
  result: null,
  summary_text: null,
  freqs_csv: null,
  meta: null,
  cost_micros: null,
} as const

function released({ job_id: jobId, state, queue, kind: jobKind }: ReleasedRow): ReleaseOutcome {
  return { kind: 'released', jobId, state, queue: state === 'CANCELED' ? null : queue, releasedIn: queue, jobKind }
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
