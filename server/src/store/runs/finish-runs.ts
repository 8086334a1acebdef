import {
  EMPTY_OUTCOME,
  type RunCommand,
  type RunError,
  type RunRefusal,
  type RunState,
} from '../../core/run/run-state.ts'
import { findFatalCodes } from '../leasing/queues.ts'
import { readCharges } from '../limits/quotas.sql.ts'
import { type Command, commandIn, type FastPath } from '../port.ts'
import {
  each,
  eachStep,
  type ParamsOf,
  queryStep,
  type Row,
  type RowOf,
  readRows,
  type Step,
  type Work,
} from '../statement.ts'
import { countNow } from '../system/minute-counts.ts'
import { type Failure, type Followed, followFailures } from './after-failure.ts'
import { changeCosts } from './costs.ts'
import { explainRefusal, type FactsRow, factsOf, leaseIdOf, tokenOf, tryOnePerJob } from './run-facts.ts'
import { finishEmpty, finishPlain, finishRuns, readFollowed } from './runs.sql.ts'

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
  jobId: string
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
  queue: string
  jobKind: string
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

/** Most runs succeed, and nothing follows. Then the statement that ends them is the whole command. */
function plainFinish(items: readonly FinishItem[]): FastPath<FinishOutcome[]> | undefined {
  const isPlain = ({ report }: FinishItem) => report.verb === 'finish' && report.costMicros === null
  if (new Set(items.map(({ jobId }) => jobId)).size < items.length || !items.every(isPlain)) return undefined
  return areEmpty(items) ? emptyFinish(items) : finishWithResults(items)
}

/** Runs of one worker that returned nothing. */
function areEmpty(items: readonly FinishItem[]): boolean {
  const worker = items[0]?.workerId
  return items.every(
    ({ workerId, outcomeHash, version, leaderEpoch, report }) =>
      workerId === worker &&
      outcomeHash === EMPTY_OUTCOME &&
      version === null &&
      leaderEpoch === null &&
      report.verb === 'finish' &&
      report.meta === null,
  )
}

function emptyFinish(items: readonly FinishItem[]): FastPath<FinishOutcome[]> {
  const sorted = items.toSorted((a, b) => (a.jobId < b.jobId ? -1 : 1))
  const jobs = `{${sorted.map(({ jobId }) => jobId).join()}}`
  const tokens = `{${sorted.map(({ leaseId }) => tokenOf(leaseId)).join()}}`
  const recorded = (answer: readonly Row[]) => {
    const outcomes = new Map<string, FinishOutcome>()
    for (const row of readRows(finishEmpty, answer)) {
      const { job_id: jobId, state, retry_count: retries, took_ms: tookMs, queue, kind: jobKind } = row
      const roomIn = row.limited ? queue : null
      const then = { retries, retryCount: retries, next: null, dead: false }
      outcomes.set(jobId, { kind: 'recorded', jobId, queue, jobKind, roomIn, state, tookMs, ...then })
    }
    return outcomes
  }
  return fastFinish(items, queryStep(finishEmpty, { jobs, tokens, worker_id: items[0]?.workerId ?? '' }), recorded)
}

function finishWithResults(items: readonly FinishItem[]): FastPath<FinishOutcome[]> {
  const recorded = (answer: readonly Row[]) =>
    new Map(readRows(finishPlain, answer).map((row) => [row.job_id, toRecorded(row, NOTHING)]))
  return fastFinish(items, eachStep(finishPlain, items.map(finishRow)), recorded)
}

/** `recorded` reads the outcomes by job. The general path explains the items without an outcome. */
function fastFinish(
  items: readonly FinishItem[],
  step: Step,
  recorded: (answer: readonly Row[]) => ReadonlyMap<string, FinishOutcome>,
): FastPath<FinishOutcome[]> {
  return {
    step,
    settle(answer) {
      if (answer.length < items.length) return null
      const outcomes = recorded(answer)
      return items.flatMap(({ jobId }) => outcomes.get(jobId) ?? [])
    },
    left(answer) {
      const outcomes = recorded(answer)
      const missed = items.filter(({ jobId }) => !outcomes.has(jobId))
      return commandIn('batches', 'finish', function* others(): Work<FinishOutcome[]> {
        const found = yield* finishRunsNow(missed)
        const after = new Map(missed.map(({ jobId }, i) => [jobId, found[i]]))
        return items.flatMap(({ jobId }) => outcomes.get(jobId) ?? after.get(jobId) ?? [])
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
    return new Map((yield* each(finishRuns, firsts.map(finishRow))).map((row) => [row.job_id, row]))
  }
  const { changed, missed } = yield* tryOnePerJob(items, attempt, commandOf)
  const ended = changed.map(([item, row]): Ended => ({ item, row }))

  yield* settleCosts(ended)
  const failures = ended.flatMap(toFailure)
  const fatal = yield* findFatalCodes(failures.map(({ row }) => row.queue))
  const isFatal = ({ row, error }: Failure) => fatal.get(row.queue)?.includes(error.code) ?? false
  const followed = yield* followFailures(
    failures.map((failure) => (isFatal(failure) ? { ...failure, retryable: false } : failure)),
  )
  const outcomes = new Map<FinishItem, FinishOutcome>()
  for (const { item, row } of ended) outcomes.set(item, toRecorded(row, followed.get(item.jobId) ?? NOTHING))

  const facts = yield* factsOf(missed)
  const before = yield* findFollowed(missed)
  for (const item of missed) outcomes.set(item, explained(item, facts.get(item.leaseId), before.get(item.leaseId)))
  yield* countNow('dead_letters', [...followed.values()].filter(({ dead }) => dead).length)
  return items.flatMap((item) => outcomes.get(item) ?? [])
}

const NOTHING = { next: null, dead: false }

function toRecorded(row: EndedRow, then: Followed | typeof NOTHING): FinishOutcome {
  return {
    kind: 'recorded',
    jobId: row.job_id,
    queue: row.queue,
    jobKind: row.kind,
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
    job_id: item.jobId,
    worker_id: item.workerId,
    token: tokenOf(item.leaseId),
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

/** By lease, the outcomes of failures that were reported before: a repeat gets the same answer. */
function* findFollowed(items: readonly FinishItem[]): Work<Map<string, Followed>> {
  const failures = items.filter(({ report }) => report.verb === 'fail')
  const rows = yield* each(
    readFollowed,
    failures.map((item) => ({ job_id: item.jobId, token: tokenOf(item.leaseId) })),
  )
  return new Map(rows.map((row) => [leaseIdOf(row.job_id, row.token), toFollowed(row)]))
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
  return repeated(row, (yield* findFollowed([item])).get(item.leaseId))
}
