import type { RunCommand, RunError, RunRefusal, RunState } from '../../core/run/run-state.ts'
import { findFatalCodes } from '../leasing/queues.ts'
import { readCharges } from '../limits/quotas.sql.ts'
import { type Command, command, commandIn, type FastPath } from '../port.ts'
import { each, eachStep, one, type ParamsOf, type RowOf, readRows, type Work } from '../statement.ts'
import { countNow } from '../system/minute-counts.ts'
import { type Failure, type Followed, followFailures } from './after-failure.ts'
import { changeCosts } from './costs.ts'
import { explainRefusal, type FactsRow, factsOf, tryOnePerRun } from './run-facts.ts'
import { finishPlain, finishRuns, readFollowed, readOwner } from './runs.sql.ts'

export type Report =
  | {
      verb: 'finish'
      result: string | null
      summaryText: string | null
      freqsCsv: string | null
      meta: string | null
      costMicros: number | null
    }
  | { verb: 'fail'; error: RunError; retryable: boolean }

export interface FinishItem {
  runId: string
  workerId: string
  leaseId: string
  version: number | null
  leaderEpoch: number | null
  /** A hash of the report without its meta: the meta of a repeat may have another time. */
  outcomeHash: string
  report: Report
  /** Made before the transaction, for the run after a failure. */
  nextRunId: string
  /** In [0, 1). It spreads retries. */
  random: number
}

interface Ends {
  jobId: string
  /** The queue, if it may have a limit and now room for another run. */
  roomIn: string | null
}

export type FinishOutcome =
  | ({ kind: 'recorded'; state: RunState; tookMs: number; retries: number } & Ends & Followed)
  | ({ kind: 'repeated'; jobId: string; state: RunState } & Followed)
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

/** Finish and fail: one transaction ends the run, and stores its result, next run or dead letter. */
export function finishBatch(items: readonly FinishItem[]): Command<FinishOutcome[]> {
  return commandIn('batches', 'finish', () => finishRunsNow(items), plainFinish(items))
}

/** The user of the run's job; null when there is no such run. */
export function findOwner(runId: string): Command<string | null> {
  return command('find_owner', function* work(): Work<string | null> {
    return (yield* one(readOwner, { id: runId }))?.user_id ?? null
  })
}

/** Most runs succeed, and nothing follows. Then the statement that ends them is the whole command. */
function plainFinish(items: readonly FinishItem[]): FastPath<FinishOutcome[]> | undefined {
  const isPlain = ({ report }: FinishItem) => report.verb === 'finish' && report.costMicros === null
  if (new Set(items.map(({ runId }) => runId)).size < items.length || !items.every(isPlain)) return undefined
  const recorded = (rows: readonly EndedRow[]) => new Map(rows.map((row) => [row.id, toRecorded(row, NOTHING)]))
  return {
    step: eachStep(finishPlain, items.map(finishRow)),
    settle(answer) {
      if (answer.length < items.length) return null
      const outcomes = recorded(readRows(finishPlain, answer))
      return items.flatMap(({ runId }) => outcomes.get(runId) ?? [])
    },
    left(answer) {
      const outcomes = recorded(readRows(finishPlain, answer))
      const missed = items.filter(({ runId }) => !outcomes.has(runId))
      return commandIn('batches', 'finish', function* others(): Work<FinishOutcome[]> {
        const found = yield* finishRunsNow(missed)
        const after = new Map(missed.map(({ runId }, i) => [runId, found[i]]))
        return items.flatMap(({ runId }) => outcomes.get(runId) ?? after.get(runId) ?? [])
      })
    },
  }
}

type EndedRow = RowOf<typeof finishRuns>

interface Ended {
  item: FinishItem
  row: EndedRow
}

/** The body, for commands that also finish. */
export function* finishRunsNow(items: readonly FinishItem[]): Work<FinishOutcome[]> {
  function* attempt(firsts: readonly FinishItem[]): Work<Map<string, EndedRow>> {
    return new Map((yield* each(finishRuns, firsts.map(finishRow))).map((row) => [row.id, row]))
  }
  const { changed, missed } = yield* tryOnePerRun(items, attempt, commandOf)
  const ended = changed.map(([item, row]): Ended => ({ item, row }))

  yield* settleCosts(ended)
  const failures = ended.flatMap(toFailure)
  const fatal = yield* findFatalCodes(failures.map(({ row }) => row.queue))
  const isFatal = ({ row, error }: Failure) => fatal.get(row.queue)?.includes(error.code) ?? false
  const followed = yield* followFailures(
    failures.map((failure) => (isFatal(failure) ? { ...failure, retryable: false } : failure)),
  )
  const outcomes = new Map<FinishItem, FinishOutcome>()
  for (const { item, row } of ended) outcomes.set(item, toRecorded(row, followed.get(item.runId) ?? NOTHING))

  const facts = yield* factsOf(missed)
  const before = yield* findFollowed(missed.filter((item) => facts.has(item.runId)))
  for (const item of missed) outcomes.set(item, explained(item, facts.get(item.runId), before.get(item.runId)))
  yield* countNow('dead_letters', [...followed.values()].filter(({ dead }) => dead).length)
  return items.flatMap((item) => outcomes.get(item) ?? [])
}

const NOTHING = { next: null, dead: false }

function toRecorded(row: EndedRow, then: Followed | typeof NOTHING): FinishOutcome {
  return {
    kind: 'recorded',
    jobId: row.job_id,
    roomIn: row.limited ? row.queue : null,
    state: row.state,
    tookMs: row.finished_at - row.started_at,
    retries: row.retry_count,
    retryCount: row.retry_count,
    ...then,
  }
}

function finishRow(item: FinishItem): ParamsOf<typeof finishRuns> {
  const { report } = item
  const isFinish = report.verb === 'finish'
  return {
    run_id: item.runId,
    worker_id: item.workerId,
    lease_id: item.leaseId,
    version: item.version,
    epoch: item.leaderEpoch,
    state: isFinish ? 'SUCCEEDED' : 'FAILED',
    outcome_hash: item.outcomeHash,
    error: isFinish ? null : JSON.stringify(report.error),
    result: isFinish && report.result !== 'null' ? report.result : null,
    summary_text: isFinish ? report.summaryText : null,
    freqs_csv: isFinish ? report.freqsCsv : null,
    meta: isFinish ? report.meta : null,
    cost_micros: isFinish ? report.costMicros : null,
  }
}

/** The outcomes of failures that were reported before: a repeat gets the same answer. */
function* findFollowed(items: readonly FinishItem[]): Work<Map<string, Followed>> {
  const failures = items.filter(({ report }) => report.verb === 'fail')
  const rows = yield* each(
    readFollowed,
    failures.map((item) => ({ id: item.runId })),
  )
  return new Map(rows.map((row) => [row.run_id, toFollowed(row)]))
}

function toFollowed(row: RowOf<typeof readFollowed>): Followed {
  const { next_id, next_run_at, queue } = row
  const retryCount = row.next_retry_count ?? row.dead_retry_count ?? row.retry_count
  const next = next_id === null ? null : { runId: next_id, runAtMs: next_run_at ?? 0, queue, due: false }
  return { next, dead: row.dead_retry_count !== null, retryCount }
}

/**
 * The cost of a result replaces the estimate. A canceled job has no result and may run again, so it never costs less than its
 * estimate: otherwise each retry would subtract the difference once more.
 */
function* settleCosts(ended: readonly Ended[]): Work<void> {
  const costs = new Map<string, { costMicros: number; state: RunState }>()
  for (const { item, row } of ended) {
    const { report } = item
    if (report.verb !== 'finish' || report.costMicros === null) continue
    costs.set(row.job_id, { costMicros: report.costMicros, state: row.state })
  }
  const charges = yield* each(
    readCharges,
    [...costs.keys()].map((job_id) => ({ job_id })),
  )
  yield* changeCosts(
    charges.flatMap((row) => {
      const cost = costs.get(row.job_id)
      if (cost === undefined) return []
      const more = cost.costMicros - row.estimated_cost_micros
      const micros = cost.state === 'SUCCEEDED' ? more : Math.max(0, more)
      return [{ userId: row.user_id, chargedAtMs: row.charged_at, micros }]
    }),
  )
}

/** Nothing follows a run with a cancel request. */
function toFailure({ item, row }: Ended): Failure[] {
  if (row.state !== 'FAILED' || item.report.verb !== 'fail') return []
  const { error, retryable } = item.report
  return [{ row, error, retryable, nextRunId: item.nextRunId, random: item.random }]
}

function commandOf({ report, workerId, leaseId, outcomeHash, version, leaderEpoch }: FinishItem): RunCommand {
  return {
    verb: report.verb,
    workerId,
    leaseId,
    outcomeHash,
    ...(version === null ? {} : { version }),
    ...(leaderEpoch === null ? {} : { leaderEpoch }),
  }
}

function explained(item: FinishItem, row: FactsRow | undefined, followed: Followed | undefined): FinishOutcome {
  if (row === undefined) return { kind: 'refused', reason: 'NOT_FOUND' }
  const reason = explainRefusal(row, commandOf(item))
  return reason === 'repeat' ? repeated(row, followed) : { kind: 'refused', reason }
}

function repeated({ job_id, state, retry_count }: FactsRow, followed: Followed | undefined): FinishOutcome {
  const then = followed ?? { next: null, dead: false, retryCount: retry_count }
  return { kind: 'repeated', jobId: job_id, state, ...then }
}

/** The answer to a report that was recorded before. */
export function* toRepeated(item: FinishItem, row: FactsRow): Work<FinishOutcome> {
  return repeated(row, (yield* findFollowed([item])).get(item.runId))
}
