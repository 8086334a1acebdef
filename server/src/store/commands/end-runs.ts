import { DEFAULT_BACKOFF, retryDelayMs } from '../../core/backoff.ts'
import { hasRetriesLeft, type JobPolicy } from '../../core/job.ts'
import type { RunRefusal, RunState } from '../../core/run-state.ts'
import { type Command, command } from '../port.ts'
import { readJobs } from '../sql/jobs.ts'
import { endRuns, insertDeadLetters, insertNextRuns, insertResults, readFacts, supersedeRuns } from '../sql/runs.ts'
import { each, integer, type Row, text, type Work } from '../statement.ts'
import { changeCosts } from './costs.ts'
import { foldBy } from './fold.ts'
import { recordMoves } from './lifecycle.ts'
import { explain } from './run-facts.ts'

export interface RunError {
  code: string
  message: string
  traceback?: string
}

export type Report =
  | {
      verb: 'finish'
      result: string | null
      summaryText: string | null
      freqsCsv: string | null
      meta: string | null
      costMicros: number | null
    }
  | { verb: 'fail'; error: RunError; retryable: boolean; costMicros: number | null }

export interface EndItem {
  runId: string
  workerId: string
  leaseId: string
  version: number | null
  leaderEpoch: number | null
  /** Of the report's content without its meta: a repeat may carry another time stamp. */
  outcomeHash: string
  report: Report
  /** Made beforehand, for the run that follows a failure. */
  nextRunId: string
  /** In [0, 1): spreads retries. */
  random: number
}

export type EndOutcome =
  | { kind: 'recorded'; jobId: string; state: RunState; next: { runId: string; runAtMs: number } | null; dead: boolean }
  | { kind: 'repeated'; jobId: string; state: RunState }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

/** Finish and fail: the run ends, and with it, in the same transaction, comes its result, next run or dead letter. */
export function endBatch(items: readonly EndItem[]): Command<EndOutcome[]> {
  return command('finish', () => work(items))
}

interface Ended {
  item: EndItem
  row: Row
  state: RunState
}

function* work(items: readonly EndItem[]): Work<EndOutcome[]> {
  // Two reports on one run in one batch: the first is tried, the second meets what it left.
  const { firsts, repeats } = foldBy(items, (item) => item.runId)
  const rows = yield* each(
    endRuns,
    firsts.map((item) => [
      item.runId,
      item.workerId,
      item.leaseId,
      item.version,
      item.leaderEpoch,
      item.report.verb === 'finish' ? 'SUCCEEDED' : 'FAILED',
      item.outcomeHash,
      item.report.verb === 'fail' ? JSON.stringify(item.report.error) : null,
    ]),
  )
  yield* recordMoves(rows)
  const byRun = new Map(rows.map((row) => [text(row, 'id'), row]))
  const ended: Ended[] = []
  for (const item of firsts) {
    const row = byRun.get(item.runId)
    if (row !== undefined) ended.push({ item, row, state: text(row, 'state') as RunState })
  }

  const outcomes = new Map<EndItem, EndOutcome>()
  for (const { item, row, state } of ended) {
    outcomes.set(item, { kind: 'recorded', jobId: text(row, 'job_id'), state, next: null, dead: false })
  }
  yield* keepResults(ended)
  const policies = yield* settleCosts(ended)
  yield* goOn(ended, policies, outcomes)

  const missed = [...firsts.filter((item) => !byRun.has(item.runId)), ...repeats.map(([item]) => item)]
  const facts = new Map(
    (yield* each(
      readFacts,
      missed.map((item) => [item.runId]),
    )).map((row) => [text(row, 'id'), row]),
  )
  for (const item of missed) outcomes.set(item, explained(item, facts.get(item.runId)))
  return items.flatMap((item) => outcomes.get(item) ?? [])
}

function* keepResults(ended: readonly Ended[]): Work<void> {
  yield* each(
    insertResults,
    ended.flatMap(({ item: { report, runId }, row, state }) =>
      report.verb === 'finish' && state === 'SUCCEEDED'
        ? [
            [
              runId,
              text(row, 'job_id'),
              report.result,
              report.summaryText,
              report.freqsCsv,
              report.meta,
              report.costMicros,
            ],
          ]
        : [],
    ),
  )
}

/** A reported cost takes the place of the estimate. Answers with the policies of the jobs that were read on the way. */
function* settleCosts(ended: readonly Ended[]): Work<Map<string, JobPolicy>> {
  const relevant = ended.filter(({ item, state }) => state === 'FAILED' || item.report.costMicros !== null)
  const jobs = yield* each(
    readJobs,
    relevant.map(({ row }) => [text(row, 'job_id')]),
  )
  const byJob = new Map(jobs.map((row) => [text(row, 'job_id'), row]))
  const changes = relevant.flatMap(({ item, row }) => {
    const job = byJob.get(text(row, 'job_id'))
    const { costMicros } = item.report
    if (costMicros === null || job === undefined) return []
    const micros = costMicros - integer(job, 'estimated_cost_micros')
    return [{ userId: text(row, 'user_id'), createdAtMs: integer(job, 'created_at'), micros }]
  })
  yield* changeCosts(changes)
  return new Map(jobs.map((row) => [text(row, 'job_id'), JSON.parse(text(row, 'policy')) as JobPolicy]))
}

/** After a failure: the next run, or nothing left to try and a dead letter. */
function* goOn(
  ended: readonly Ended[],
  policies: Map<string, JobPolicy>,
  outcomes: Map<EndItem, EndOutcome>,
): Work<void> {
  const failed = ended.filter(({ state }) => state === 'FAILED')
  const retries = new Map<string, Ended>()
  const nextRows: (string | number)[][] = []
  const dead: Ended[] = []
  for (const one of failed) {
    const { item, row } = one
    const policy = policies.get(text(row, 'job_id')) ?? {}
    const retryCount = integer(row, 'retry_count') + 1
    const retryable = item.report.verb === 'fail' && item.report.retryable
    if (!retryable || !hasRetriesLeft(policy, retryCount)) {
      dead.push(one)
      continue
    }
    const delayMs = retryDelayMs(policy.backoff ?? DEFAULT_BACKOFF, retryCount - 1, item.random)
    nextRows.push([item.runId, item.nextRunId, delayMs, retryCount])
    retries.set(item.nextRunId, one)
  }
  yield* each(
    supersedeRuns,
    nextRows.map(([runId]) => [runId ?? null]),
  )
  const next = yield* each(insertNextRuns, nextRows)
  yield* recordMoves(next)
  for (const row of next) {
    const one = retries.get(text(row, 'run_id'))
    const runAtMs = integer(row, 'run_at')
    if (one) outcomes.set(one.item, recorded(one, { next: { runId: text(row, 'run_id'), runAtMs }, dead: false }))
  }
  yield* each(insertDeadLetters, dead.map(deadLetter))
  for (const one of dead) outcomes.set(one.item, recorded(one, { next: null, dead: true }))
}

function recorded(
  { row, state }: Ended,
  then: { next: { runId: string; runAtMs: number } | null; dead: boolean },
): EndOutcome {
  return { kind: 'recorded', jobId: text(row, 'job_id'), state, ...then }
}

function deadLetter({ item, row }: Ended): (string | number)[] {
  const error = item.report.verb === 'fail' ? item.report.error : { code: 'UNKNOWN', message: '' }
  return [
    text(row, 'job_id'),
    item.runId,
    text(row, 'queue'),
    text(row, 'kind'),
    text(row, 'user_id'),
    error.code,
    error.message,
    integer(row, 'retry_count') + 1,
  ]
}

function explained(item: EndItem, row: Row | undefined): EndOutcome {
  const { workerId, leaseId, outcomeHash, version, leaderEpoch } = item
  const reason = explain(row, {
    verb: item.report.verb,
    workerId,
    leaseId,
    outcomeHash,
    ...(version === null ? {} : { version }),
    ...(leaderEpoch === null ? {} : { leaderEpoch }),
  })
  if (reason !== 'repeat') return { kind: 'refused', reason }
  return { kind: 'repeated', jobId: text(row, 'job_id'), state: text(row, 'state') as RunState }
}
