import type { RunCommand, RunRefusal } from '../../core/run/run-state.ts'
import { type Command, commandIn } from '../port.ts'
import { each, type RowOf, type Work } from '../statement.ts'
import { explainRefusal, type FactsRow, factsOf, tokenOf, tryOnePerJob } from './run-facts.ts'
import { startRuns } from './runs.sql.ts'

export interface StartItem {
  jobId: string
  workerId: string
  leaseId: string
  version: number | null
  /** Names the process that starts the run. Its repeat gets the same answer, and another process is refused. */
  startId: string
}

interface Started {
  jobId: string
  version: number
  leaderEpoch: number
  attempt: number
}

/** `waitedMs` counts from the due time. */
export type StartOutcome =
  | (Started & { kind: 'started'; waitedMs: number; queue: string; jobKind: string })
  | (Started & { kind: 'repeated' })
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

export function startBatch(items: readonly StartItem[]): Command<StartOutcome[]> {
  return commandIn('batches', 'start', function* work(): Work<StartOutcome[]> {
    function* attempt(firsts: readonly StartItem[]): Work<Map<string, RowOf<typeof startRuns>>> {
      const rows = firsts.map((item) => ({
        job_id: item.jobId,
        worker_id: item.workerId,
        token: tokenOf(item.leaseId),
        version: item.version,
        start_id: item.startId,
      }))
      return new Map((yield* each(startRuns, rows)).map((row) => [row.job_id, row]))
    }
    const { changed, missed } = yield* tryOnePerJob(items, attempt, commandOf)
    const facts = yield* factsOf(missed)
    const outcomes = new Map(missed.map((item) => [item, explained(item, facts.get(item.leaseId))]))
    for (const [item, row] of changed) {
      const waitedMs = Math.max(0, row.started_at - row.run_at)
      outcomes.set(item, { kind: 'started', ...toStarted(row), waitedMs, queue: row.queue, jobKind: row.kind })
    }
    return items.flatMap((item) => outcomes.get(item) ?? [])
  })
}

function commandOf({ workerId, leaseId, startId, version }: StartItem): RunCommand {
  return { verb: 'start', workerId, leaseId, startId, ...(version === null ? {} : { version }) }
}

function explained(item: StartItem, row: FactsRow | undefined): StartOutcome {
  const reason = explainRefusal(row, commandOf(item))
  return reason === 'repeat' && row !== undefined ? { kind: 'repeated', ...toStarted(row) } : refused(reason)
}

function refused(reason: ReturnType<typeof explainRefusal>): StartOutcome {
  return { kind: 'refused', reason: reason === 'repeat' ? 'NOT_FOUND' : reason }
}

function toStarted(row: Pick<FactsRow, 'job_id' | 'version' | 'leader_epoch' | 'attempt'>): Started {
  const { job_id, version, leader_epoch, attempt } = row
  if (leader_epoch === null) throw new TypeError('A run that has started has the epoch of its leader')
  return { jobId: job_id, version, leaderEpoch: leader_epoch, attempt }
}
