import {
  type DeadLetterDetail,
  type DeadLetterGroups,
  type DeadLetterShape,
  IchidoError,
  type JobDetail,
  type Page,
} from '@ichido/sdk/protocol'
import type { SubmitInput } from '../../contract/submit.ts'
import { clip } from '../../core/json/text.ts'
import { type Caller, mayChange, mayRead } from '../../core/limits/roles.ts'
import { ARTIFACTS_PER_JOB_MAX } from '../../core/run/artifact.ts'
import { type Artifact, listArtifacts } from '../../store/artifacts/artifacts.ts'
import {
  countDeadLetters,
  type DeadFilter,
  type DeadLetter,
  findDeadLetter,
  listDeadLetters,
} from '../../store/dead-letters/dead-letters.ts'
import { type DeadGroups, groupDeadLetters } from '../../store/dead-letters/group-dead-letters.ts'
import { type RetryOutcome, retryJob } from '../../store/jobs/retry-jobs.ts'
import { iso, notFound, requireId, visibleTo } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { type JobService, LISTED_MESSAGE_MAX } from '../jobs/jobs.ts'
import type { FairTags } from '../leasing/fair-tags.ts'
import { policyOf, refusalError, retryRefusal, type SubmitService } from '../submission/submit-job.ts'

export { type DeadFilter, renderFilter } from '../../store/dead-letters/dead-letters.ts'

export interface DeadLetterService {
  get(caller: Caller, jobId: string): Promise<DeadLetterDetail>
  /** A place in the list is the time when the job became a dead letter, a colon, and the id of the job. */
  list(caller: Caller, filter: DeadFilter, limit: number, after: string | null): Promise<Page<DeadLetterShape>>
  /** By queue, kind and error code; the largest first. */
  groups(caller: Caller, filter: DeadFilter): Promise<DeadLetterGroups>
  counts(): Promise<DeadLetterCounts>
  /** The same job gets another run, due now, with a full retry budget. */
  retry(caller: Caller, jobId: string): Promise<JobDetail>
  /** A new job with another payload replaces the old job, which is then no longer a dead letter. */
  replace(caller: Caller, jobId: string, payload: unknown, key: string | null): Promise<Replaced>
}

export interface DeadLetterCounts {
  /** The number of queues and the count of each have a maximum, so that counting a million dead letters costs little. */
  queues: { queue: string; count: number; oldestMs: number }[]
  operationsRunning: number
}

interface Replaced {
  job: JobDetail
  /** The key was used for this replacement before. */
  replayed: boolean
}

const GROUPS_MAX = 200
const COUNTED_QUEUES_MAX = 200
export const COUNTED_EACH_MAX = 10_000
const REPLACE_OPERATION = 'retry'

export function createDeadLetterService(
  { world, store, bus, meter }: Deps,
  jobs: JobService,
  submission: SubmitService,
  fairTags: FairTags,
): DeadLetterService {
  /** A job that the caller may retry. */
  async function own(caller: Caller, jobId: string): Promise<JobDetail> {
    const job = await jobs.get(caller, jobId)
    if (!mayChange(caller, job.user_id)) throw new IchidoError('FORBIDDEN')
    return job
  }

  return {
    async get(caller, jobId) {
      requireId('dead letter', jobId)
      const row = await store.read(findDeadLetter(jobId))
      if (row === undefined || !mayRead(caller, row.user_id)) throw notFound('dead letter', jobId)
      return { ...renderDeadLetter(row), job: await jobs.get(caller, jobId) }
    },

    async list(caller, filter, limit, after) {
      const visible = visibleTo(caller, filter)
      if (visible === null) return { data: [], next_cursor: null }
      const [deadAtMs = '', id = ''] = after?.split(':') ?? []
      const place = after === null ? null : { deadAtMs: Number(deadAtMs), jobId: id }
      const { rows, next } = await store.read(listDeadLetters(visible, limit, place))
      return { data: rows.map(renderListed), next_cursor: next && `${next.deadAtMs}:${next.jobId}` }
    },

    async groups(caller, filter) {
      const visible = visibleTo(caller, filter)
      return renderGroups(visible === null ? NO_GROUPS : await store.read(groupDeadLetters(visible, GROUPS_MAX)))
    },

    async counts() {
      const { queues, operationsRunning } = await store.read(countDeadLetters(COUNTED_QUEUES_MAX, COUNTED_EACH_MAX))
      return {
        // Null if the last dead letter was resolved between the two reads.
        queues: queues.map(({ queue, count, oldest_ms }) => ({ queue, count, oldestMs: oldest_ms ?? 0 })),
        operationsRunning,
      }
    },

    async retry(caller, jobId) {
      await own(caller, jobId)
      const item = { jobId, nextRunId: world.uuid() }
      const outcome = await fairTags.learnFrom(
        (leased) => store.write(retryJob(item, caller.userId, world.uuid(), leased)),
        (outcome) => (outcome.kind === 'retried' && outcome.ready !== null ? [outcome.ready] : []),
      )
      if (outcome.kind === 'refused') throw refusal(outcome)
      meter.retried('person', outcome.queue)
      if (outcome.parkedMs !== null) meter.deadLetterResolved('retried', outcome.parkedMs)
      bus.wake([`queue:${outcome.queue}`, `job:${jobId}`])
      return jobs.get(caller, jobId)
    },

    async replace(caller, jobId, payload, key) {
      const job = await own(caller, jobId)
      const letter = await store.read(findDeadLetter(jobId))
      // The new job belongs to the user of the old one, and counts against that user's quota.
      const owner: Caller = { userId: job.user_id, role: caller.role }
      const artifacts = inputsOf(await store.read(listArtifacts(jobId, ARTIFACTS_PER_JOB_MAX)))
      const outcome = await submission.submit(
        owner,
        { ...inputOf(job, payload), artifacts },
        {
          key,
          operation: REPLACE_OPERATION,
          hashOver: { job_id: jobId, payload },
          policy: policyOf(job.policy),
          replacesJobId: jobId,
        },
      )
      if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
      const replayed = outcome.kind === 'replayed'
      if (!replayed) meter.retried('person', job.queue)
      if (letter !== undefined && !replayed) {
        meter.deadLetterResolved('replaced', Math.max(0, world.now() - letter.dead_at))
      }
      return { job: await jobs.get(caller, outcome.jobId), replayed }
    },
  }
}

/** The request of the old job, except its key, which stays with the old job. */
function inputOf(job: JobDetail, payload: unknown): SubmitInput {
  const { kind, queue, priority, labels, estimated_cost, traceparent, callback } = job
  const trace = traceparent === null ? {} : { traceparent }
  const told = callback === null ? {} : { callback_url: callback.url }
  return { kind, queue, priority, labels, estimated_cost, payload, ...trace, ...told }
}

/** Files that were sent for the old job need not be sent again. */
function inputsOf(artifacts: readonly Artifact[]): NonNullable<SubmitInput['artifacts']> {
  return artifacts.flatMap(({ runId, name, sha256, sizeBytes }) =>
    runId === null ? [{ name, sha256: sha256 ?? undefined, size_bytes: sizeBytes ?? undefined }] : [],
  )
}

function refusal(outcome: Extract<RetryOutcome, { kind: 'refused' }>): IchidoError {
  const { jobId } = outcome
  switch (outcome.reason) {
    case 'KEY_TAKEN': {
      const other = outcome.byJobId === null ? 'another job' : `job ${outcome.byJobId}`
      const message = `The key ${JSON.stringify(outcome.key)} of job ${jobId} names ${other} now`
      return new IchidoError('KEY_TAKEN', message, { key: outcome.key, job_id: outcome.byJobId })
    }
    case 'QUOTA_EXCEEDED':
    case 'COST_LIMIT_EXCEEDED':
      return new IchidoError(outcome.reason, outcome.message)
    default:
      return retryRefusal(jobId, outcome)
  }
}

function renderListed(row: DeadLetter): DeadLetterShape {
  const letter = renderDeadLetter(row)
  return { ...letter, error_message: clip(letter.error_message, LISTED_MESSAGE_MAX) }
}

function renderDeadLetter(row: DeadLetter): DeadLetterShape {
  return { ...row, dead_at: iso(row.dead_at) }
}

const NO_GROUPS: DeadGroups = { rows: [], fromMs: 0, stepMs: 0 }

function renderGroups({ rows, fromMs, stepMs }: DeadGroups): DeadLetterGroups {
  return {
    from: iso(fromMs),
    step_seconds: stepMs / 1_000,
    data: rows.map((row) => ({
      ...row,
      first_dead_at: iso(row.first_dead_at),
      last_dead_at: iso(row.last_dead_at),
      sample_message: clip(row.sample_message, LISTED_MESSAGE_MAX),
    })),
  }
}
