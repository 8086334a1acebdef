import type { RunCommand, RunRefusal } from '../../core/run-state.ts'
import { type Command, command } from '../port.ts'
import { readFacts, startRuns } from '../sql/runs.ts'
import { each, integer, type Row, text, type Work } from '../statement.ts'
import { tryInTurn } from './fold.ts'
import { explain } from './run-facts.ts'

export interface StartItem {
  runId: string
  workerId: string
  leaseId: string
  version: number | null
  /** Names the process that starts the run: its own repeat is answered alike, another process is refused. */
  startId: string
}

export type StartOutcome =
  | { kind: 'started' | 'repeated'; jobId: string; version: number; leaderEpoch: number; attempt: number }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

export function startBatch(items: readonly StartItem[]): Command<StartOutcome[]> {
  return command('start', function* work(): Work<StartOutcome[]> {
    function* attempt(firsts: readonly StartItem[]): Work<Map<string, Row>> {
      const rows = firsts.map((item) => [item.runId, item.workerId, item.leaseId, item.version, item.startId])
      return new Map((yield* each(startRuns, rows)).map((row) => [text(row, 'id'), row]))
    }
    const { changed, missed } = yield* tryInTurn(items, attempt, commandOf)
    const facts = new Map(
      (yield* each(
        readFacts,
        missed.map((item) => [item.runId]),
      )).map((row) => [text(row, 'id'), row]),
    )
    const outcomes = new Map(missed.map((item) => [item, explained(item, facts.get(item.runId))]))
    for (const [item, row] of changed) outcomes.set(item, answer('started', row))
    return items.flatMap((item) => outcomes.get(item) ?? [])
  })
}

function commandOf({ workerId, leaseId, startId, version }: StartItem): RunCommand {
  return { verb: 'start', workerId, leaseId, startId, ...(version === null ? {} : { version }) }
}

function explained(item: StartItem, row: Row | undefined): StartOutcome {
  const reason = explain(row, commandOf(item))
  return reason === 'repeat' && row !== undefined ? answer('repeated', row) : refused(reason)
}

function refused(reason: ReturnType<typeof explain>): StartOutcome {
  return { kind: 'refused', reason: reason === 'repeat' ? 'NOT_FOUND' : reason }
}

function answer(kind: 'started' | 'repeated', row: Row): StartOutcome {
  const [version, leaderEpoch, attempt] = [
    integer(row, 'version'),
    integer(row, 'leader_epoch'),
    integer(row, 'attempt'),
  ]
  return { kind, jobId: text(row, 'job_id'), version, leaderEpoch, attempt }
}
