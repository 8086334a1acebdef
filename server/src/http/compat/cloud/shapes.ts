import { DEFAULT_LIST_LIMIT, ERRORS, IchidoError, type JobShape, type JobState } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery, yesOrNo } from '../../../contract/common.ts'
import { submitRequest } from '../../../contract/submit.ts'
import { EVERY_JOB, type JobFilter } from '../../../services/jobs/jobs.ts'
import { answersWith } from '../../server/openapi.ts'

/** The requests and answers of S0. */

export const KIND = 'cloud.train'
/** Labels, because lists do not show payloads. */
export const PROVIDER_LABEL = 'cloud.provider'
export const CONFIG_LABEL = 'cloud.config'
const DEFAULT_PROVIDER = 'replicate'

export const CLOUD_STATUSES = ['pending', 'uploading', 'queued', 'running', 'completed', 'failed', 'cancelled'] as const
export type CloudStatus = (typeof CLOUD_STATUSES)[number]

/**
 * The words of S0 for the states of a run. Two of its words have no state: a PENDING run that waits for artifacts is
 * `uploading`, as every job is in its first answer, and a PENDING run that is not due is `pending`.
 */
const STATUS_OF: Readonly<Record<JobState, CloudStatus>> = {
  PENDING: 'queued',
  ASSIGNED: 'queued',
  ORPHANED: 'queued',
  RUNNING: 'running',
  SUCCEEDED: 'completed',
  FAILED: 'failed',
  TIMED_OUT: 'failed',
  CANCELED: 'cancelled',
}

export const statusOfState = (state: JobState): CloudStatus => STATUS_OF[state]

export function cloudStatus(
  job: Pick<JobShape, 'state' | 'created_at' | 'run_at' | 'awaits_artifacts'>,
  nowMs: number,
): CloudStatus {
  if (job.awaits_artifacts) return 'uploading'
  // A run without a delay is due, even if the clocks of the store and this node differ.
  const waits = job.state === 'PENDING' && job.run_at > job.created_at && Date.parse(job.run_at) > nowMs
  return waits ? 'pending' : STATUS_OF[job.state]
}

/** The filter for the jobs with this status, by the same rules as `cloudStatus`. */
export function jobsWith(status: CloudStatus | undefined): Pick<JobFilter, 'states' | 'pendingFor'> {
  if (status === undefined) return EVERY_JOB
  if (status === 'pending') return { states: ['PENDING'], pendingFor: 'run_at' }
  if (status === 'uploading') return { states: ['PENDING'], pendingFor: 'artifacts' }
  const states = Object.entries(STATUS_OF).flatMap(([state, its]) => (its === status ? [state] : []))
  return { states, pendingFor: 'worker' }
}

const PROVIDER = /^[A-Za-z0-9._-]{1,64}$/
const provider = z
  .string()
  .regex(PROVIDER, 'must be 1 to 64 letters, digits, dots, dashes or underscores')
  .meta({ description: 'The job goes to the queue `cloud.<provider>`' })

/** Pydantic clients send null for fields without a value. */
const open = <T extends z.ZodType>(schema: T) => schema.nullish()

export const submitQuery = z.object({
  provider: provider.default(DEFAULT_PROVIDER),
  dry_run: yesOrNo.optional().meta({ description: 'The same as in the body; it holds if either is true' }),
})

const { estimated_cost, reservation_id, key_ttl_hours, artifacts, upload_ttl_seconds } = submitRequest.shape

const CONFIG_NAME_MAX = 256
const configName = z
  .string()
  .max(CONFIG_NAME_MAX)
  .regex(/^\P{Cc}*$/u, 'must not have control characters')

/** Real clients send other fields, too. They go to the worker unchanged. */
export const submitBody = z
  .looseObject({
    config_name_to_load: open(configName.min(1)).meta({
      description: 'A stored definition of this name supplies payload and policy; any other name goes to the worker',
    }),
    config: open(z.record(z.string(), z.unknown())).meta({ description: 'The config itself, if no name is given' }),
    config_name: open(configName).meta({ description: 'The name in lists for a job whose config has no name' }),
    idempotency_key: open(z.string()),
    dataloader_config: open(z.array(z.record(z.string(), z.unknown()))),
    webhook_url: open(z.string()).meta({
      description: 'The callback of the job: gets a signed message about its end; https, and a public address',
    }),
    snapshot_name: open(z.string()),
    snapshot_message: open(z.string()),
    tracker_run_name: open(z.string()),
    upload_id: open(z.string()),
    dry_run: open(z.boolean()).meta({ description: 'Return the answer that the submission would get; make no job' }),
    estimated_cost: open(estimated_cost),
    reservation_id: open(reservation_id),
    key_ttl_hours: open(key_ttl_hours),
    artifacts: open(artifacts),
    upload_ttl_seconds: open(upload_ttl_seconds),
  })
  .superRefine(({ config_name_to_load, config }, { addIssue }) => {
    if (config_name_to_load != null || Object.keys(config ?? {}).length > 0) return
    const message = 'is missing: name a config, or send one as config'
    addIssue({ code: 'custom', path: ['config_name_to_load'], message })
  })
  .meta({ id: 'CloudSubmitRequest' })

export type CloudSubmit = z.output<typeof submitBody>

const LIMIT_MAX = 500
/** The maximum of `offset` and `total`, because skipping and counting cost as much as reading the jobs. */
export const COUNTED_MAX = 10_000

/** Clients send other parameters, too, such as `sync_active`. They are ignored. */
export const listCloudQuery = z.object({
  provider: provider.optional(),
  status: z.enum(CLOUD_STATUSES).optional(),
  job_type: z.enum(['cloud', 'local']).optional().meta({ description: '`local` matches no jobs' }),
  offset: z.coerce
    .number()
    .int()
    .min(0)
    .refine((offset) => offset <= COUNTED_MAX, `must be at most ${COUNTED_MAX}; go further with next_cursor`)
    .default(0)
    .meta({ description: 'How many jobs to skip; `next_cursor` is faster in long lists' }),
  limit: z.coerce
    .number()
    .int()
    .min(1)
    .max(LIMIT_MAX)
    .default(DEFAULT_LIST_LIMIT)
    .meta({ description: 'Entries per answer' }),
  cursor: listQuery.cursor,
})

export const followQuery = z.object({ follow: yesOrNo.optional() })

export const cloudAnswer = z
  .object({
    success: z.boolean(),
    job_id: z.uuid().nullable(),
    status: z.enum(CLOUD_STATUSES).nullable(),
    data_uploaded: z.boolean(),
    idempotent_hit: z.boolean(),
    quota_warnings: z.array(z.string()),
    cost_limit_warning: z.string().nullable(),
    error: z.string().nullable(),
    dry_run: z.literal(true).optional().meta({ description: 'No job was made' }),
  })
  .meta({ id: 'CloudSubmitResponse' })

export type CloudAnswer = z.output<typeof cloudAnswer>

const time = z.iso.datetime()

export const cloudJob = z
  .object({
    job_id: z.uuid(),
    job_type: z.literal('cloud'),
    provider: z.string().nullable(),
    config_name: z.string().nullable(),
    status: z.enum(CLOUD_STATUSES),
    user_id: z.string(),
    created_at: time,
    queued_at: time,
    started_at: time.nullable(),
    completed_at: time.nullable(),
    duration_seconds: z
      .number()
      .nullable()
      .meta({ description: 'The duration of the latest run, until now or until its end' }),
    cost_usd: z.number().nullable().meta({ description: 'The cost that the worker reported' }),
    error_message: z.string().nullable(),
  })
  .meta({ id: 'CloudJob' })

export type CloudJob = z.output<typeof cloudJob>

export const cloudJobs = z.object({
  jobs: z.array(cloudJob),
  total: z
    .int()
    .meta({ description: 'The number of all jobs that match, regardless of `limit`, `offset` and `cursor`' }),
  total_capped: z
    .boolean()
    .meta({ description: `True: there are more jobs than \`total\`, because counting ends at ${COUNTED_MAX}` }),
  next_cursor: z.string().nullable(),
})

export function renderJob(job: JobShape, costUsd: number | undefined, nowMs: number): CloudJob {
  const { started_at, finished_at } = job
  const ranMs = started_at === null ? null : (finished_at ? Date.parse(finished_at) : nowMs) - Date.parse(started_at)
  return {
    job_id: job.job_id,
    job_type: 'cloud',
    provider: job.labels[PROVIDER_LABEL] ?? null,
    config_name: job.labels[CONFIG_LABEL] ?? null,
    status: cloudStatus(job, nowMs),
    user_id: job.user_id,
    created_at: job.created_at,
    queued_at: job.run_at,
    started_at,
    completed_at: finished_at,
    duration_seconds: ranMs === null ? null : Math.max(0, ranMs) / 1000,
    cost_usd: costUsd ?? null,
    error_message: job.error?.message ?? null,
  }
}

export const cancelAnswer = z.object({
  success: z.boolean(),
  job_id: z.uuid(),
  status: z.enum(CLOUD_STATUSES),
  error: z.string().nullable(),
})

export const deleteAnswer = z.object({ success: z.boolean(), job_id: z.uuid(), error: z.string().nullable() })

/** A job of another kind is not found. */
export function requireCloud<Job extends Pick<JobShape, 'kind' | 'job_id'>>(job: Job): Job {
  if (job.kind !== KIND) throw new IchidoError('NOT_FOUND', `There is no cloud job ${job.job_id}`)
  return job
}

/**
 * Errors below `/api/cloud`. The clients of S0 read `success` and `error`, and the CLI of SimpleTuner reads `detail`.
 * Each prints what it finds, so both have the message. The other fields are those of the native form.
 */
const cloudError = z
  .object({
    success: z.literal(false),
    error: z.string(),
    detail: z.string().meta({ description: 'The same as `error`' }),
    code: z.enum(Object.keys(ERRORS) as [keyof typeof ERRORS]),
    details: z.record(z.string(), z.unknown()),
    request_id: z.string(),
  })
  .meta({ id: 'CloudError' })

export type CloudError = z.output<typeof cloudError>

export function cloudErrorBody({ code, message, details }: IchidoError, requestId: string): CloudError {
  return { success: false, error: message, detail: message, code, details, request_id: requestId }
}

type Answers = Parameters<typeof answersWith> extends [z.ZodType, ...infer Rest] ? Rest : never

export const cloudAnswers = (...answers: Answers) => answersWith(cloudError, ...answers)
