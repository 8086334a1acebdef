import type { RunCommand, RunRefusal, RunState } from '../../core/run/run-state.ts'
import { findFatalCodes } from '../leasing/queues.ts'
import { readCharges } from '../limits/quotas.sql.ts'
import { type Command, command, type FastPath } from '../port.ts'
import {
  each,
  flag,
  integer,
  integerOrNull,
  one,
  type Row,
  type SqlValue,
  text,
  textOrNull,
  type Work,
} from '../statement.ts'
import { countNow } from '../system/count-now.ts'
import { type Failure, type Followed, followFailures, type RunError } from './after-failure.ts'
import { changeCosts } from './costs.ts'
import { tryOnePerRun } from './fold.ts'
import { explain } from './run-facts.ts'
import { finishPlain, finishRuns, readFacts, readFollowed, readOwner } from './runs.sql.ts'

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
  /** Of the report's content without its meta: a repeat may carry another time stamp. */
  outcomeHash: string
  report: Report
  /** Made beforehand, for the run that follows a failure. */
  nextRunId: string
  /** In [0, 1): spreads retries. */
  random: number
}

interface Ends {
  jobId: string
  /** The queue, if it may have had no room for another run before. */
  roomIn: string | null
}

export type FinishOutcome =
  | ({ kind: 'recorded'; state: RunState; tookMs: number; retries: number } & Ends & Followed)
  | ({ kind: 'repeated'; jobId: string; state: RunState } & Followed)
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

/** Finish and fail: the run ends, and with it, in the same transaction, comes its result, next run or dead letter. */
export function finishBatch(items: readonly FinishItem[]): Command<FinishOutcome[]> {
  return command('finish', () => finishRunsNow(items), plainFinish(items))
}

/** Whose job the run is of; null when there is no such run. */
export function findOwner(runId: string): Command<string | null> {
  return command('find_owner', function* work(): Work<string | null> {
    return textOrNull(yield* one(readOwner, runId), 'user_id')
  })
}

/** Most runs succeed, and nothing follows: then the statement that ends them is all there is to do. */
function plainFinish(items: readonly FinishItem[]): FastPath<FinishOutcome[]> | undefined {
  const isPlain = ({ report }: FinishItem) => report.verb === 'finish' && report.costMicros === null
  if (new Set(items.map(({ runId }) => runId)).size < items.length || !items.every(isPlain)) return undefined
  const recorded = (rows: readonly Row[]) => new Map(rows.map((row) => [text(row, 'id'), toRecorded(row, NOTHING)]))
  return {
    step: { kind: 'each', statement: finishPlain, rows: items.map(finishRow) },
    settle(rows) {
      if (rows.length < items.length) return null
      const outcomes = recorded(rows)
      return items.flatMap(({ runId }) => outcomes.get(runId) ?? [])
    },
    left(rows) {
      const outcomes = recorded(rows)
      const missed = items.filter(({ runId }) => !outcomes.has(runId))
      return command('finish', function* others(): Work<FinishOutcome[]> {
        const found = yield* finishRunsNow(missed)
        const after = new Map(missed.map(({ runId }, i) => [runId, found[i]]))
        return items.flatMap(({ runId }) => outcomes.get(runId) ?? after.get(runId) ?? [])
      })
    },
  }
}

interface Ended {
  item: FinishItem
  row: Row
  state: RunState
}

/** In the transaction of whoever calls it. */
export function* finishRunsNow(items: readonly FinishItem[]): Work<FinishOutcome[]> {
  function* attempt(firsts: readonly FinishItem[]): Work<Map<string, Row>> {
    return new Map((yield* each(finishRuns, firsts.map(finishRow))).map((row) => [text(row, 'id'), row]))
  }
  const { changed, missed } = yield* tryOnePerRun(items, attempt, commandOf)
  const ended = changed.map(([item, row]): Ended => ({ item, row, state: text(row, 'state') as RunState }))

  yield* settleCosts(ended)
  const failures = ended.flatMap(toFailure)
  const fatal = yield* findFatalCodes(failures.map(({ row }) => text(row, 'queue')))
  const isFatal = ({ row, error }: Failure) => fatal.get(text(row, 'queue'))?.includes(error.code) ?? false
  const followed = yield* followFailures(
    failures.map((failure) => (isFatal(failure) ? { ...failure, retryable: false } : failure)),
  )
  const outcomes = new Map<FinishItem, FinishOutcome>()
  for (const { item, row } of ended) outcomes.set(item, toRecorded(row, followed.get(item.runId) ?? NOTHING))

  const facts = new Map(
    (yield* each(
      readFacts,
      missed.map((item) => [item.runId]),
    )).map((row) => [text(row, 'id'), row]),
  )
  const before = yield* findFollowed(missed.filter((item) => facts.has(item.runId)))
  for (const item of missed) outcomes.set(item, explained(item, facts.get(item.runId), before.get(item.runId)))
  yield* countNow('dead_letters', [...followed.values()].filter(({ dead }) => dead).length)
  return items.flatMap((item) => outcomes.get(item) ?? [])
}

const NOTHING = { next: null, dead: false }

function toRecorded(row: Row, then: Followed | typeof NOTHING): FinishOutcome {
  const retries = integer(row, 'retry_count')
  return {
    kind: 'recorded',
    jobId: text(row, 'job_id'),
    roomIn: flag(row, 'limited') ? text(row, 'queue') : null,
    state: text(row, 'state') as RunState,
    tookMs: integer(row, 'finished_at') - integer(row, 'started_at'),
    retries,
    retryCount: retries,
    ...then,
  }
}

function finishRow({ runId, workerId, leaseId, version, leaderEpoch, outcomeHash, report }: FinishItem): SqlValue[] {
  const guards = [runId, workerId, leaseId, version, leaderEpoch]
  if (report.verb === 'fail') {
    return [...guards, 'FAILED', outcomeHash, JSON.stringify(report.error), null, null, null, null, null]
  }
  const { result, summaryText, freqsCsv, meta, costMicros } = report
  const kept = result === 'null' ? null : result
  return [...guards, 'SUCCEEDED', outcomeHash, null, kept, summaryText, freqsCsv, meta, costMicros]
}

/** What came after failures that were reported before: a repeat is told the same. */
function* findFollowed(items: readonly FinishItem[]): Work<Map<string, Followed>> {
  const failures = items.filter(({ report }) => report.verb === 'fail')
  const rows = yield* each(
    readFollowed,
    failures.map((item) => [item.runId]),
  )
  return new Map(rows.map((row) => [text(row, 'run_id'), toFollowed(row)]))
}

function toFollowed(row: Row): Followed {
  const [nextId, runAtMs] = [textOrNull(row, 'next_id'), integerOrNull(row, 'next_run_at')]
  const retryCount =
    integerOrNull(row, 'next_retry_count') ?? integerOrNull(row, 'dead_retry_count') ?? integer(row, 'retry_count')
  const next = nextId === null ? null : { runId: nextId, runAtMs: runAtMs ?? 0, queue: text(row, 'queue'), due: false }
  return { next, dead: integerOrNull(row, 'dead_retry_count') !== null, retryCount }
}

/**
 * The cost that a result names takes the place of the estimate. A canceled job has no result, and may run again: it never
 * costs less than its estimate, or each retry would take off the difference once more.
 */
function* settleCosts(ended: readonly Ended[]): Work<void> {
  const costs = new Map<string, { costMicros: number; state: RunState }>()
  for (const { item, row, state } of ended) {
    const { report } = item
    if (report.verb !== 'finish' || report.costMicros === null) continue
    costs.set(text(row, 'job_id'), { costMicros: report.costMicros, state })
  }
  const charges = yield* each(
    readCharges,
    [...costs.keys()].map((id) => [id]),
  )
  yield* changeCosts(
    charges.flatMap((row) => {
      const cost = costs.get(text(row, 'job_id'))
      if (cost === undefined) return []
      const more = cost.costMicros - integer(row, 'estimated_cost_micros')
      const micros = cost.state === 'SUCCEEDED' ? more : Math.max(0, more)
      return [{ userId: text(row, 'user_id'), chargedAtMs: integer(row, 'charged_at'), micros }]
    }),
  )
}

/** A run that was to be canceled has ended as wished: nothing follows. */
function toFailure({ item, row, state }: Ended): Failure[] {
  if (state !== 'FAILED' || item.report.verb !== 'fail') return []
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

function explained(item: FinishItem, row: Row | undefined, followed: Followed | undefined): FinishOutcome {
  const reason = explain(row, commandOf(item))
  return reason === 'repeat' ? repeated(row, followed) : { kind: 'refused', reason }
}

function repeated(row: Row | undefined, followed: Followed | undefined): FinishOutcome {
  const then = followed ?? { next: null, dead: false, retryCount: integer(row, 'retry_count') }
  return { kind: 'repeated', jobId: text(row, 'job_id'), state: text(row, 'state') as RunState, ...then }
}

/** The answer to a report that was recorded before, on the run whose facts these are. */
export function* toRepeated(item: FinishItem, row: Row): Work<FinishOutcome> {
  return repeated(row, (yield* findFollowed([item])).get(item.runId))
}
