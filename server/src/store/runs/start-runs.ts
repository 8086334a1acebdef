import type { RunCommand, RunRefusal } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { each, integer, type Row, text, type Work } from '../statement.ts'
import { tryOnePerRun } from './fold.ts'
import { explain } from './run-facts.ts'
import { readFacts, startRuns } from './runs.sql.ts'

export interface StartItem {
  runId: string
  workerId: string
  leaseId: string
  version: number | null
  /** Names the process that starts the run: its own repeat is answered alike, another process is refused. */
  startId: string
}

interface Started {
  jobId: string
  version: number
  leaderEpoch: number
  attempt: number
}

/** `waitedMs`: from when the run was due. */
export type StartOutcome =
  | (Started & { kind: 'started'; waitedMs: number })
  | (Started & { kind: 'repeated' })
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

export function startBatch(items: readonly StartItem[]): Command<StartOutcome[]> {
  return command('start', function* work(): Work<StartOutcome[]> {
    function* attempt(firsts: readonly StartItem[]): Work<Map<string, Row>> {
      const rows = firsts.map((item) => [item.runId, item.workerId, item.leaseId, item.version, item.startId])
      return new Map((yield* each(startRuns, rows)).map((row) => [text(row, 'id'), row]))
    }
    const { changed, missed } = yield* tryOnePerRun(items, attempt, commandOf)
    const facts = new Map(
      (yield* each(
        readFacts,
        missed.map((item) => [item.runId]),
      )).map((row) => [text(row, 'id'), row]),
    )
    const outcomes = new Map(missed.map((item) => [item, explained(item, facts.get(item.runId))]))
    for (const [item, row] of changed) {
      const waitedMs = Math.max(0, integer(row, 'started_at') - integer(row, 'run_at'))
      outcomes.set(item, { kind: 'started', ...toStarted(row), waitedMs })
    }
    return items.flatMap((item) => outcomes.get(item) ?? [])
  })
}

function commandOf({ workerId, leaseId, startId, version }: StartItem): RunCommand {
  return { verb: 'start', workerId, leaseId, startId, ...(version === null ? {} : { version }) }
}

function explained(item: StartItem, row: Row | undefined): StartOutcome {
  const reason = explain(row, commandOf(item))
  return reason === 'repeat' && row !== undefined ? { kind: 'repeated', ...toStarted(row) } : refused(reason)
}

function refused(reason: ReturnType<typeof explain>): StartOutcome {
  return { kind: 'refused', reason: reason === 'repeat' ? 'NOT_FOUND' : reason }
}

function toStarted(row: Row): Started {
  return {
    jobId: text(row, 'job_id'),
    version: integer(row, 'version'),
    leaderEpoch: integer(row, 'leader_epoch'),
    attempt: integer(row, 'attempt'),
  }
}
