import { ERROR_MESSAGE_MAX, ERROR_TRACEBACK_MAX, IchidoError, type LeaseShape } from '@ichido/sdk/protocol'
import type { Topic } from '../../bus/port.ts'
import { LEASE_MAX } from '../../contract/leases.ts'
import { stagesOf } from '../../core/events/event.ts'
import { clip, storableText } from '../../core/json/text.ts'
import { requestHash } from '../../core/keys/key.ts'
import { toMicros } from '../../core/limits/quota.ts'
import { DEFAULT_LEASE_TTL_MS } from '../../core/run/job.ts'
import { EMPTY_OUTCOME, isFinal, type RunError } from '../../core/run/run-state.ts'
import { findCancels } from '../../store/jobs/cancel-or-delete.ts'
import { findOwner } from '../../store/jobs/job-owner.ts'
import { type HeartbeatItem, type HeartbeatOutcome, heartbeatBatch } from '../../store/leasing/heartbeat-runs.ts'
import type { Leased } from '../../store/leasing/lease-runs.ts'
import { type ReleaseItem, type ReleaseOutcome, releaseBatch } from '../../store/leasing/release-runs.ts'
import { type FinishItem, type FinishOutcome, finishBatch, type Report } from '../../store/runs/finish-runs.ts'
import { finishLate } from '../../store/runs/late-reports.ts'
import { jobIdOf } from '../../store/runs/run-facts.ts'
import { type StartItem, type StartOutcome, startBatch } from '../../store/runs/start-runs.ts'
import { notFound } from '../answers.ts'
import { Batcher, type BatcherOptions } from '../batching/batcher.ts'
import type { Deps } from '../deps.ts'
import { LeaseRoom } from '../leasing/lease-room.ts'
import type { PollDispatcher } from '../leasing/poll-dispatcher.ts'
import type { RecentPolls } from '../leasing/recent-polls.ts'
import { waitFor } from '../wait.ts'

export type { HeartbeatOutcome } from '../../store/leasing/heartbeat-runs.ts'
export type { FinishOutcome, Report } from '../../store/runs/finish-runs.ts'

export interface LeaseRequest {
  /** The queues, in this order. */
  queues: readonly string[]
  /** Empty: any kind. */
  kinds: readonly string[]
  max: number
  waitMs: number
  /** Identifies this poll: a repeat gets the same leases. */
  pollId?: string | undefined
  /** If set, the runs start at once, by the process with this id. */
  startId?: string | undefined
  /** For runs without a lease time of their job or queue. */
  leaseTtlMs?: number | undefined
}

/** The calls of a worker, which is known by its id. */
export interface RunService {
  lease(workerId: string, request: LeaseRequest, signal?: AbortSignal): Promise<LeaseShape[]>
  start(workerId: string, leaseId: string, startId: string, version?: number): Promise<StartOutcome>
  heartbeat(workerId: string, leaseId: string): Promise<HeartbeatOutcome>
  /**
   * The leases whose runs must stop, as soon as there is one that is not known; none after the wait time. It writes
   * nothing. A heartbeat says the same, but later.
   */
  cancels(workerId: string, known: readonly string[], waitMs: number, signal?: AbortSignal): Promise<string[]>
  finish(workerId: string, leaseId: string, report: Report, guards?: ReportGuards): Promise<FinishOutcome>
  /** Each report has its own outcome, in the order of the reports, also one that cannot be read. */
  finishAll(workerId: string, reports: readonly LeaseReport[]): Promise<PromiseSettledResult<FinishOutcome>[]>
  /** Gives a run back, without a retry. */
  release(workerId: string, leaseId: string): Promise<ReleaseOutcome>
}

export interface LeaseReport {
  leaseId: string
  /** May throw. */
  read(): Report
  guards?: ReportGuards | undefined
}

interface ReportGuards {
  version?: number | undefined
  leaderEpoch?: number | undefined
  /** The worker sends no heartbeats: its report counts after its lease, too, if no other worker got the job since. */
  late?: boolean | undefined
}

const LEASE_TOKEN_BYTES = 16
/** No run follows a success. */
const NO_RUN = ''
/** Keeps a report out of the batch that has no costs. */
const APART = new Error('The report has a cost')
const hasCost = ({ report }: FinishItem) => report.verb === 'finish' && report.costMicros !== null

export function createRunService(deps: Deps, dispatcher: PollDispatcher): RunService {
  const { world, store, bus, meter, limits, evidence } = deps
  const leaseRoom = new LeaseRoom(deps)

  function batcher<Item extends { workerId: string }, Outcome>(
    name: string,
    run: (items: Item[]) => Promise<Outcome[]>,
    changes: Partial<BatcherOptions<Item, Outcome>> = {},
  ): Batcher<Item, Outcome> {
    const sizes = { itemsMax: 1_000, bytesMax: 8 * 1024 * 1024, inFlightMax: 1 }
    const of = { bytesOf: () => 200, userOf: (item: Item) => item.workerId, onBatch: meter.batch }
    return new Batcher({ name, world, ...sizes, run, ...of, ...changes })
  }

  const starts = batcher<StartItem, StartOutcome>('start', async (items) => {
    const outcomes = await store.write(startBatch(items))
    bus.wake(outcomes.flatMap((outcome) => (outcome.kind === 'started' ? [`job:${outcome.jobId}` as const] : [])))
    return outcomes
  })
  const beats = batcher<HeartbeatItem, HeartbeatOutcome>('heartbeat', (items) => store.write(heartbeatBatch(items)))
  const releases = batcher<ReleaseItem, ReleaseOutcome>('release', async (items) => {
    const outcomes = await store.write(releaseBatch(items))
    bus.wake(outcomes.flatMap(wakesOfRelease))
    return outcomes
  })
  async function endAll(items: FinishItem[], failFastOnLock: boolean): Promise<FinishOutcome[]> {
    const outcomes = await store.write({ ...finishBatch(items), failFastOnLock })
    bus.wake([...new Set(outcomes.flatMap(wakesOfEnd))])
    return outcomes
  }
  const bytesOf = (item: FinishItem) => bytesOfReport(item.report) + 300
  const ends = batcher<FinishItem, FinishOutcome>('finish', (items) => endAll(items, false), { bytesOf })
  // A cost is charged to the user, whose row a transaction of an application may lock for long.
  const costs = batcher<FinishItem & { ownerId: string }, FinishOutcome>('finish', (items) => endAll(items, true), {
    bytesOf,
    userOf: ({ ownerId }) => ownerId,
  })

  async function finishLateRun(item: FinishItem): Promise<FinishOutcome> {
    const outcome = await store.write(finishLate({ ...item, token: world.secret(LEASE_TOKEN_BYTES) }))
    bus.wake(wakesOfEnd(outcome))
    return outcome
  }

  function counted<Outcome extends { kind: string } | { kind: 'refused'; reason: string }>(
    verb: string,
    jobId: string,
    outcome: Outcome,
  ): Outcome {
    if ('reason' in outcome) {
      meter.fenced(verb, outcome.reason)
      evidence.refused(jobId, outcome.reason)
    }
    return outcome
  }

  function finishItem(workerId: string, leaseId: string, told: Report, guards: ReportGuards = {}): FinishItem {
    const whole = mended(told)
    const report = clipped(whole)
    if (report.verb === 'finish' && bytesOfReport(report) > limits.resultBytesMax) {
      throw new IchidoError('PAYLOAD_TOO_LARGE', `The result is larger than ${limits.resultBytesMax} bytes`)
    }
    return {
      jobId: jobOf(leaseId),
      workerId,
      leaseId,
      version: guards.version ?? null,
      leaderEpoch: guards.leaderEpoch ?? null,
      outcomeHash: outcomeHash(whole),
      report,
      nextRunId: report.verb === 'fail' ? world.uuid() : NO_RUN,
      random: report.verb === 'fail' ? world.random() : 0,
    }
  }

  async function finishWithCost(item: FinishItem): Promise<FinishOutcome> {
    return costs.add({ ...item, ownerId: (await store.read(findOwner(item.jobId))) ?? item.jobId })
  }

  function finished({ jobId, report }: FinishItem, outcome: FinishOutcome): FinishOutcome {
    if (outcome.kind === 'recorded') {
      const { state, queue, jobKind } = outcome
      const costMicros = report.verb === 'finish' && state === 'SUCCEEDED' ? (report.costMicros ?? 0) : 0
      meter.ended(state, outcome.retries, queue, jobKind)
      meter.reported(state, outcome.tookMs, queue, jobKind, costMicros)
      if (outcome.next !== null) meter.retried('policy', queue)
      if (outcome.dead) meter.deadLetterMade(queue)
    } else if (outcome.kind === 'repeated') evidence.count(outcome.jobId, 'replaysServed')
    return counted(report.verb, jobId, outcome)
  }

  /** The worker disconnected during the lease, and cannot repeat its poll, which has no name. */
  async function giveBack({ jobId, leaseId, workerId }: Leased): Promise<void> {
    await releases.add({ jobId, workerId, leaseId, nextRunId: world.uuid() })
  }

  return {
    async lease(workerId, request, signal) {
      const room = await leaseRoom.take(workerId, request.max)
      const item = {
        workerId,
        queues: [...new Set(request.queues)],
        kinds: [...new Set(request.kinds)].sort(),
        max: room.max,
        pollId: request.pollId ?? world.uuid(),
        named: request.pollId !== undefined,
        token: world.secret(LEASE_TOKEN_BYTES),
        leaseTtlMs: request.leaseTtlMs ?? DEFAULT_LEASE_TTL_MS,
        startId: request.startId ?? null,
      }
      let leases: Leased[]
      try {
        leases = await dispatcher.lease(item, room.max === 0 ? 0 : request.waitMs, signal)
      } catch (error) {
        // A commit without an answer may have leased all of them.
        room.settle(room.max)
        throw error
      }
      room.settle(leases.length)
      if (room.max === 0 && leases.length === 0) throw leaseRoom.refusal(workerId)
      if (signal?.aborted && !item.named) await Promise.all(leases.map(giveBack))
      return leases.map(renderLease)
    },

    async start(workerId, leaseId, startId, version) {
      const jobId = jobOf(leaseId)
      const outcome = await starts.add({ jobId, workerId, leaseId, version: version ?? null, startId })
      if (outcome.kind === 'started') meter.started(outcome.waitedMs, outcome.queue, outcome.jobKind)
      return counted('start', jobId, outcome)
    },

    async heartbeat(workerId, leaseId) {
      const item = { jobId: jobOf(leaseId), workerId, leaseId }
      return counted('heartbeat', item.jobId, await beats.add(item))
    },

    async cancels(workerId, known, waitMs, signal) {
      const told = new Set(known)
      const look = async () => {
        const found = await store.read(findCancels(workerId, LEASE_MAX))
        return found.every((leaseId) => told.has(leaseId)) ? null : found
      }
      const topic = `worker:${workerId}` as const
      return (await waitFor(deps, [topic], waitMs, look, signal, Number.POSITIVE_INFINITY)) ?? []
    },

    async finish(workerId, leaseId, told, guards = {}) {
      const item = finishItem(workerId, leaseId, told, guards)
      const inTime = await (hasCost(item) ? finishWithCost(item) : ends.add(item))
      const tooLate = inTime.kind === 'refused' && inTime.reason === 'ALREADY_ENDED'
      return finished(item, guards.late && tooLate ? await finishLateRun(item) : inTime)
    },

    async finishAll(workerId, reports) {
      const items: (FinishItem | undefined)[] = Array(reports.length)
      const costly: [number, FinishItem][] = []
      const settled = await ends.addAll([...reports.keys()], (i) => {
        const { leaseId, read, guards } = reports[i] as LeaseReport
        const item = finishItem(workerId, leaseId, read(), guards)
        items[i] = item
        if (!hasCost(item)) return item
        costly.push([i, item])
        throw APART
      })
      await Promise.all(
        costly.map(async ([i, item]) => {
          const [outcome] = await Promise.allSettled([finishWithCost(item)])
          settled[i] = outcome
        }),
      )
      for (const [i, one] of settled.entries()) {
        const item = items[i]
        if (one.status === 'fulfilled' && item !== undefined) finished(item, one.value)
      }
      return settled
    },

    async release(workerId, leaseId) {
      const jobId = jobOf(leaseId)
      const outcome = await releases.add({ jobId, workerId, leaseId, nextRunId: world.uuid() })
      if (outcome.kind === 'released' && isFinal(outcome.state)) {
        meter.ended(outcome.state, 0, outcome.releasedIn, outcome.jobKind)
      }
      return counted('release', jobId, outcome)
    },
  }
}

function wakesOfEnd(outcome: FinishOutcome): Topic[] {
  if (outcome.kind !== 'recorded') return []
  const queue = outcome.next?.due ? outcome.next.queue : outcome.roomIn
  return queue === null ? [`job:${outcome.jobId}`] : [`job:${outcome.jobId}`, `queue:${queue}`]
}

function wakesOfRelease(outcome: ReleaseOutcome): Topic[] {
  if (outcome.kind !== 'released') return []
  return outcome.queue === null ? [`job:${outcome.jobId}`] : [`job:${outcome.jobId}`, `queue:${outcome.queue}`]
}

function jobOf(leaseId: string): string {
  const jobId = jobIdOf(leaseId)
  if (jobId === null) throw notFound('lease', leaseId)
  return jobId
}

/** The end of a run in the form of the API. */
export type ToldEnd =
  | {
      result?: unknown
      summary_text?: string | null | undefined
      freqs_csv?: string | null | undefined
      meta?: unknown
      cost?: number | undefined
    }
  | { error_code: string; error_message: string; traceback?: string | null | undefined; retryable: boolean }

/** @param toJson writes a field as JSON, or throws. */
export function toReport(
  told: ToldEnd,
  toJson: (value: unknown, field: string) => string = (value) => JSON.stringify(value ?? null),
): Report {
  if ('error_code' in told) {
    const { error_code: code, error_message: message, traceback, retryable } = told
    return { verb: 'fail', error: { code, message, ...(traceback == null ? {} : { traceback }) }, retryable }
  }
  return {
    verb: 'finish',
    result: toJson(told.result, 'result'),
    summaryText: told.summary_text ?? null,
    freqsCsv: told.freqs_csv ?? null,
    meta: told.meta === undefined ? null : toJson(told.meta, 'meta'),
    costMicros: told.cost === undefined ? null : toMicros(told.cost),
  }
}

/** A failure report is never refused because of its text. */
function mended(report: Report): Report {
  return report.verb === 'finish' ? report : { ...report, error: mapTexts(report.error, storableText) }
}

/** The SDK's workers cut these texts, too. */
function clipped(report: Report): Report {
  if (report.verb === 'finish') return report
  const max = { code: Number.POSITIVE_INFINITY, message: ERROR_MESSAGE_MAX, traceback: ERROR_TRACEBACK_MAX }
  return { ...report, error: mapTexts(report.error, (text, name) => clip(text, max[name])) }
}

function mapTexts(
  { code, message, traceback }: RunError,
  change: (text: string, name: keyof RunError) => string,
): RunError {
  const error = { code: change(code, 'code'), message: change(message, 'message') }
  return traceback === undefined ? error : { ...error, traceback: change(traceback, 'traceback') }
}

/** Without meta, because a repeated report may have another time stamp and is still the same outcome. */
function outcomeHash(report: Report): string {
  if (report.verb === 'fail')
    return requestHash({ verb: 'fail', code: report.error.code, message: report.error.message })
  const { result, summaryText, freqsCsv } = report
  if (result === 'null' && summaryText === null && freqsCsv === null) return EMPTY_OUTCOME
  return requestHash({ verb: 'finish', result: JSON.parse(result ?? 'null') as unknown, summaryText, freqsCsv })
}

function bytesOfReport(report: Report): number {
  const parts =
    report.verb === 'fail'
      ? [report.error.message, report.error.traceback]
      : [report.result, report.summaryText, report.freqsCsv, report.meta]
  return parts.reduce((sum, part) => sum + Buffer.byteLength(part ?? ''), 0)
}

function renderLease(leased: Leased): LeaseShape {
  return {
    job_id: leased.jobId,
    run_id: leased.runId,
    attempt: leased.attempt,
    lease_id: leased.leaseId,
    version: leased.version,
    leader_epoch: leased.leaderEpoch,
    queue: leased.queue,
    kind: leased.kind,
    payload: JSON.parse(leased.payload) as unknown,
    lease_ttl_seconds: leased.leaseTtlMs / 1000,
    continuation_seconds: leased.continuationMs / 1000,
    timeout_seconds: leased.policy.timeout_seconds ?? null,
    traceparent: leased.traceparent,
    stages: stagesOf(leased.policy.stages),
    artifacts: JSON.parse(leased.artifacts) as LeaseShape['artifacts'],
    last_progress: leased.lastProgress === null ? null : (JSON.parse(leased.lastProgress) as unknown),
  }
}

/** The same service, with recent polls noted. */
export function noting(runs: RunService, recentPolls: RecentPolls): RunService {
  return {
    ...runs,
    lease(workerId, request, signal) {
      recentPolls.note(workerId, request.queues, request.kinds)
      return runs.lease(workerId, request, signal)
    },
  }
}
