import {
  endText,
  IchidoError,
  type JobCountsShape,
  type JobDetail,
  type JobShape,
  type Page,
  type ResultShape,
  type RunErrorShape,
  type RunShape,
  type WaitingForShape,
} from '@ichido/sdk/protocol'
import { clip } from '../../core/json/text.ts'
import { MICROS } from '../../core/limits/quota.ts'
import { type Caller, mayChange, mayRead } from '../../core/limits/roles.ts'
import { awaitsUploads, wantedRunAt } from '../../core/run/artifact.ts'
import { type JobPolicy, toBackoffShape } from '../../core/run/job.ts'
import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { waitingFor } from '../../core/run/waiting.ts'
import { type CancelOutcome, cancelJob, type DeleteRefusal, deleteJob } from '../../store/jobs/cancel-or-delete.ts'
import {
  countListed,
  countStates,
  type JobFilter,
  type ListOptions,
  listJobs,
  type StateCount,
} from '../../store/jobs/list-jobs.ts'
import {
  countJobs,
  findJob,
  findReportedCosts,
  findResult,
  type JobResult,
  type JobWithRuns,
  type ListedJob,
  type ShownRun,
} from '../../store/jobs/read-jobs.ts'
import { findObstacles } from '../../store/runs/waiting.ts'
import type { PromiseCounts } from '../../store/system/promise-counters.ts'
import { iso, isoOrNull, notFound, renderPage, requireId, visibleTo } from '../answers.ts'
import type { Deps } from '../deps.ts'
import type { RecentPolls } from '../leasing/recent-polls.ts'
import { waitFor } from '../wait.ts'
import { renderCallback } from '../webhooks/callbacks.ts'
import { ONLINE_MS } from '../workers/workers.ts'

export type { DeleteRefusal } from '../../store/jobs/cancel-or-delete.ts'
export { EVERY_JOB, type JobFilter, statesOf } from '../../store/jobs/list-jobs.ts'

export interface JobService {
  get(caller: Caller, jobId: string): Promise<JobDetail>
  list(
    caller: Caller,
    filter: JobFilter,
    limit: number,
    cursor: string | null,
    options?: Pick<ListOptions, 'order' | 'offset'>,
  ): Promise<Page<JobShape>>
  /** The number of jobs that `list` has, counted up to `max`. */
  count(caller: Caller, filter: JobFilter, max: number): Promise<number>
  /** By state; each count has a maximum. */
  countStates(caller: Caller, filter: JobFilter): Promise<JobCountsShape>
  /** The costs that workers reported, by job. It does not check the caller: ask only for jobs of its list. */
  reportedCosts(jobIds: readonly string[]): Promise<ReadonlyMap<string, number>>
  /** The outcome of a job that has ended; waits up to `waitMs` for the end. */
  result(caller: Caller, jobId: string, waitMs: number, signal?: AbortSignal): Promise<ResultShape>
  cancel(caller: Caller, jobId: string): Promise<{ job: JobDetail; outcome: CancelOutcome['kind'] }>
  /** Removes an ended job with its logs, events and files, or says why it cannot. */
  delete(caller: Caller, jobId: string): Promise<DeleteRefusal | 'deleted'>
  counts(): Promise<Record<string, number>>
}

/** A list has up to 200 errors, so their messages are cut. The detail of a job has the whole message. */
export const LISTED_MESSAGE_MAX = 1_000
/** The jobs that a count looks at in each state. */
export const COUNTED_MAX = 10_000
/** The states of a job that has not started, or that waits as a dead letter in a redrive. */
const MAY_WAIT: readonly string[] = ['PENDING', 'ORPHANED', 'FAILED', 'TIMED_OUT'] satisfies RunState[]

export function createJobService(deps: Deps, recentPolls: RecentPolls): JobService {
  const { store, bus, evidence } = deps

  /** A job that the caller may not see is not found. */
  async function visible(caller: Caller, jobId: string): Promise<JobDetail> {
    requireId('job', jobId)
    const found = await store.read(findJob(jobId))
    if (found === null || !mayRead(caller, found.job.user_id)) throw notFound('job', jobId)
    const waitingFor = await reasonToWait(found.job)
    return renderDetail(found, waitingFor, evidence.total(found.once, jobId))
  }

  /** The owner and operators may change a job. */
  async function changeable(caller: Caller, jobId: string): Promise<void> {
    const job = await visible(caller, jobId)
    if (!mayChange(caller, job.user_id)) throw new IchidoError('FORBIDDEN')
  }

  async function reasonToWait(job: ListedJob): Promise<WaitingForShape | null> {
    if (!MAY_WAIT.includes(job.state)) return null
    const lastPoll = recentPolls.last(job.queue, job.kind)
    return waitingFor(await store.read(findObstacles(job, lastPoll, ONLINE_MS)))
  }

  return {
    get: visible,

    async list(caller, filter, limit, cursor, options) {
      const visible = visibleTo(caller, filter)
      if (visible === null) return { data: [], next_cursor: null }
      return renderPage(await store.read(listJobs(visible, limit, cursor, options)), renderListed)
    },

    async count(caller, filter, max) {
      const visible = visibleTo(caller, filter)
      return visible === null ? 0 : store.read(countListed(visible, max))
    },

    async countStates(caller, filter) {
      const visible = visibleTo(caller, filter)
      return renderCounts(visible === null ? [] : await store.read(countStates(visible, COUNTED_MAX)))
    },

    async reportedCosts(jobIds) {
      const costs = await store.read(findReportedCosts(jobIds))
      return new Map([...costs].map(([jobId, micros]) => [jobId, micros / MICROS]))
    },

    async result(caller, jobId, waitMs, signal) {
      requireId('job', jobId)
      const look = async () => {
        const found = await store.read(findResult(jobId))
        if (found === undefined || !mayRead(caller, found.user_id)) throw notFound('job', jobId)
        return found
      }
      const ended = async () => {
        const found = await look()
        return isFinal(found.state) ? found : null
      }
      // After an abort it looks once more, because the job may have ended just then.
      const found = (await waitFor(deps, [`job:${jobId}`], waitMs, ended, signal)) ?? (await look())
      const { state } = found
      if (isFinal(state)) return renderResult(jobId, found)
      throw new IchidoError('RESULT_NOT_READY', `Job ${jobId} is ${state}; its result can be read when it has ended`, {
        state,
      })
    },

    async cancel(caller, jobId) {
      await changeable(caller, jobId)
      const outcome = await store.write(cancelJob(jobId, { id: deps.world.uuid(), actor: caller.userId }))
      if (outcome.kind === 'refused') {
        if (outcome.reason === 'NOT_FOUND') throw notFound('job', jobId)
        throw new IchidoError('ALREADY_ENDED', `Job ${jobId} has ended: ${outcome.state}`, { state: outcome.state })
      }
      if (outcome.kind === 'canceled') deps.meter.ended('CANCELED', 0, outcome.queue, outcome.jobKind)
      bus.wake([`job:${jobId}`, ...(outcome.kind === 'requested' ? [`worker:${outcome.workerId}` as const] : [])])
      return { job: await visible(caller, jobId), outcome: outcome.kind }
    },

    async delete(caller, jobId) {
      await changeable(caller, jobId)
      const by = { id: deps.world.uuid(), actor: caller.userId }
      for (;;) {
        const outcome = await store.write(deleteJob(jobId, by))
        if (outcome.kind === 'unfinished') continue
        if (outcome.kind === 'refused') return outcome.refusal
        bus.wake([`job:${jobId}`])
        return 'deleted'
      }
    },

    async counts() {
      return Object.fromEntries(await store.read(countJobs()))
    },
  }
}

export function renderCounts(counts: readonly StateCount[]): JobCountsShape {
  return {
    total: counts.reduce((sum, { count }) => sum + count, 0),
    capped: counts.some(({ capped }) => capped),
    by_state: Object.fromEntries(counts.map(({ state, count, capped }) => [state, { count, capped }])),
  }
}

function renderResult(jobId: string, found: JobResult): ResultShape {
  const { state, error, cost_micros: cost } = found
  if (state !== 'SUCCEEDED') {
    throw new IchidoError('JOB_FAILED', `Job ${jobId} ${endText(state, error)}`, { state, error })
  }
  return {
    job_id: jobId,
    state,
    result: JSON.parse(found.result ?? 'null') as unknown,
    summary_text: found.summary_text,
    freqs_csv: found.freqs_csv,
    meta: JSON.parse(found.meta ?? 'null') as unknown,
    cost: cost === null ? null : cost / MICROS,
    finished_at: isoOrNull(found.finished_at),
  }
}

function renderListed(job: ListedJob): JobShape {
  const { error } = job
  return renderJob(job, error && { code: error.code, message: clip(error.message, LISTED_MESSAGE_MAX) })
}

function renderJob(job: ListedJob, error: RunErrorShape | null): JobShape {
  return {
    job_id: job.job_id,
    kind: job.kind,
    queue: job.queue,
    user_id: job.user_id,
    state: job.state,
    priority: job.priority,
    attempt: job.attempt,
    retry_count: job.retry_count,
    labels: job.labels ?? {},
    estimated_cost: job.estimated_cost_micros / MICROS,
    created_at: iso(job.created_at),
    run_at: iso(wantedRunAt(job.run_at)),
    awaits_artifacts: awaitsUploads(job.run_at) && job.state === 'PENDING',
    started_at: isoOrNull(job.started_at),
    finished_at: isoOrNull(job.finished_at),
    cancel_requested_at: isoOrNull(job.cancel_requested_at),
    replaces_job_id: job.replaces_job_id,
    definition: job.definition,
    scheduled_for: isoOrNull(job.scheduled_for),
    error,
  }
}

function renderRun(run: ShownRun): RunShape {
  return {
    run_id: run.run_id,
    run_no: run.run_no,
    state: run.state,
    version: run.version,
    attempt: run.attempt,
    retry_count: run.retry_count,
    run_at: iso(wantedRunAt(run.run_at)),
    created_at: iso(run.created_at),
    assigned_worker_id: run.worker_id,
    assigned_at: isoOrNull(run.assigned_at),
    lease_expires_at: isoOrNull(run.lease_expires_at),
    started_at: isoOrNull(run.started_at),
    finished_at: isoOrNull(run.finished_at),
    continuation_state: run.deadline_at === null ? 'NONE' : 'CONFIRMING',
    continuation_check_deadline_at: isoOrNull(run.deadline_at),
    cancel_requested_at: isoOrNull(run.cancel_requested_at),
    error: run.error,
  }
}

function toPolicyShape({ backoff, ...policy }: JobPolicy): Record<string, unknown> {
  return backoff === undefined ? policy : { ...policy, backoff: toBackoffShape(backoff) }
}

function renderDetail(
  { job, runs, key, callback }: JobWithRuns,
  waitingFor: WaitingForShape | null,
  once: PromiseCounts,
): JobDetail {
  return {
    ...renderJob(job, job.error),
    payload: JSON.parse(job.payload) as unknown,
    policy: toPolicyShape(job.policy),
    traceparent: job.traceparent,
    idempotency_key: key,
    trigger_id: job.trigger_id,
    callback: callback && renderCallback(callback),
    waiting_for: waitingFor,
    runs: runs.map(renderRun),
    once: {
      duplicates_refused: once.duplicatesRefused,
      replays_served: once.replaysServed,
      stale_writes_fenced: once.staleWritesFenced,
      reassignments: reassignments(runs.map(({ attempt }) => attempt)),
    },
  }
}

/** How often a run went to another worker before it started, from the last attempt of each run. */
function reassignments(attempts: readonly number[]): number {
  return attempts.reduce((sum, attempt, i) => sum + Math.max(0, attempt - (attempts[i - 1] ?? 0) - 1), 0)
}
