import {
  endText,
  IchidoError,
  type JobDetail,
  type JobShape,
  type Page,
  type ResultShape,
  type WaitingForShape,
} from '@ichido/sdk/protocol'
import { MICROS } from '../../core/limits/quota.ts'
import { type Caller, mayChange, mayRead } from '../../core/limits/roles.ts'
import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { waitingFor } from '../../core/run/waiting.ts'
import { type CancelOutcome, cancelJob, type DeleteRefusal, deleteJob } from '../../store/jobs/cancel-or-delete.ts'
import { countListed, type JobFilter, listJobs } from '../../store/jobs/list-jobs.ts'
import {
  countJobs,
  findJob,
  findReportedCosts,
  findResult,
  type JobResult,
  type ListedJob,
} from '../../store/jobs/read-jobs.ts'
import { findObstacles } from '../../store/runs/waiting.ts'
import { isoOrNull, notFound, renderPage, requireId, visibleTo } from '../answers.ts'
import type { Deps } from '../deps.ts'
import type { RecentPolls } from '../leasing/recent-polls.ts'
import { waitFor } from '../wait.ts'
import { ONLINE_MS } from '../workers/workers.ts'
import { renderDetail, renderListed } from './render.ts'

export type { DeleteRefusal } from '../../store/jobs/cancel-or-delete.ts'
export { EVERY_JOB, type JobFilter } from '../../store/jobs/list-jobs.ts'

export interface JobService {
  get(caller: Caller, jobId: string): Promise<JobDetail>
  /** Skips `offset` jobs after the cursor, or from the newest. */
  list(
    caller: Caller,
    filter: JobFilter,
    limit: number,
    cursor: string | null,
    offset?: number,
  ): Promise<Page<JobShape>>
  /** The number of jobs that `list` has, counted up to `max`. */
  count(caller: Caller, filter: JobFilter, max: number): Promise<number>
  /** The costs that workers reported, by job. It does not check the caller: ask only for jobs of its list. */
  reportedCosts(jobIds: readonly string[]): Promise<ReadonlyMap<string, number>>
  /** The outcome of a job that has ended; waits up to `waitMs` for the end. */
  result(caller: Caller, jobId: string, waitMs: number, signal?: AbortSignal): Promise<ResultShape>
  cancel(caller: Caller, jobId: string): Promise<{ job: JobDetail; outcome: CancelOutcome['kind'] }>
  /** Removes an ended job with its logs, events and files, or says why it cannot. */
  delete(caller: Caller, jobId: string): Promise<DeleteRefusal | 'deleted'>
  counts(): Promise<Record<string, number>>
}

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
    const ids = [jobId, ...found.runs.map(({ id }) => id)]
    return renderDetail(found, waitingFor, evidence.total(found.once, ids))
  }

  /** The owner and operators may change a job. */
  async function changeable(caller: Caller, jobId: string): Promise<void> {
    const job = await visible(caller, jobId)
    if (!mayChange(caller, job.user_id)) throw new IchidoError('FORBIDDEN')
  }

  async function reasonToWait(job: ListedJob): Promise<WaitingForShape | null> {
    if (!MAY_WAIT.includes(job.state)) return null
    const askedAgoMs = recentPolls.agoMs(job.queue, job.kind)
    return waitingFor(await store.read(findObstacles(job, askedAgoMs, ONLINE_MS)))
  }

  return {
    get: visible,

    async list(caller, filter, limit, cursor, offset) {
      const visible = visibleTo(caller, filter)
      if (visible === null) return { data: [], next_cursor: null }
      return renderPage(await store.read(listJobs(visible, limit, cursor, offset)), renderListed)
    },

    async count(caller, filter, max) {
      const visible = visibleTo(caller, filter)
      return visible === null ? 0 : store.read(countListed(visible, max))
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
      if (outcome.kind === 'canceled') deps.meter.ended('CANCELED')
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
