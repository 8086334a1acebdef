import type { JobShape, JobState } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery } from '../../core/contract/list.ts'
import { submitRequest } from '../../core/contract/submit.ts'

/** S0's requests and answers. */

export const CLOUD_STATUSES = ['pending', 'uploading', 'queued', 'running', 'completed', 'failed', 'cancelled'] as const
export type CloudStatus = (typeof CLOUD_STATUSES)[number]

/**
 * What S0 calls the states of a run. Two of its words have no state of their own: a PENDING run that waits for artifacts is
 * `uploading`, as every job is in its first answer, and one whose time has not come is `pending`.
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

export function cloudStatus(
  job: Pick<JobShape, 'state' | 'created_at' | 'run_at' | 'awaits_artifacts'>,
  nowMs: number,
): CloudStatus {
  if (job.awaits_artifacts) return 'uploading'
  // A run that was due from the start is so whatever the difference between the store's clock and this one.
  const waits = job.state === 'PENDING' && job.run_at > job.created_at && Date.parse(job.run_at) > nowMs
  return waits ? 'pending' : STATUS_OF[job.state]
}

/** The states in which a job can have this status. */
export function statesOf(status: CloudStatus): JobState[] {
  if (status === 'pending' || status === 'uploading') return ['PENDING']
  return (Object.keys(STATUS_OF) as JobState[]).filter((state) => STATUS_OF[state] === status)
}

const CONFIG_NAME_MAX = 256
const PROVIDER = /^[A-Za-z0-9._-]{1,64}$/
const provider = z
  .string()
  .regex(PROVIDER, 'must be 1 to 64 letters, digits, dots, dashes or underscores')
  .meta({ description: 'The job goes to the queue `cloud.<provider>`' })

/** Pydantic clients send null for what they leave open. */
const open = <T extends z.ZodType>(schema: T) => schema.nullish()

export const submitQuery = z.object({ provider })

const { estimated_cost, reservation_id, key_ttl_hours, artifacts, upload_ttl_seconds } = submitRequest.shape

/** Fields that are not named here are real clients' too: they go to the worker as they are. */
export const submitBody = z
  .looseObject({
    config_name_to_load: z
      .string()
      .min(1)
      .max(CONFIG_NAME_MAX)
      .regex(/^\P{Cc}*$/u, 'must not have control characters')
      .meta({ description: 'A definition of this name lends its payload and policy; any other goes to the worker' }),
    idempotency_key: open(z.string()),
    config: open(z.record(z.string(), z.unknown())),
    dataloader_config: open(z.array(z.record(z.string(), z.unknown()))),
    config_name: open(z.string()),
    webhook_url: open(z.string()),
    snapshot_name: open(z.string()),
    snapshot_message: open(z.string()),
    tracker_run_name: open(z.string()),
    upload_id: open(z.string()),
    estimated_cost: open(estimated_cost),
    reservation_id: open(reservation_id),
    key_ttl_hours: open(key_ttl_hours),
    artifacts: open(artifacts),
    upload_ttl_seconds: open(upload_ttl_seconds),
  })
  .meta({ id: 'CloudSubmitRequest' })

export type CloudSubmit = z.output<typeof submitBody>

/** Clients send more than this server has a use for (`job_type`, `sync_active`); only what would mislead is refused. */
export const listCloudQuery = z.object({
  provider: provider.optional(),
  status: z.enum(CLOUD_STATUSES).optional(),
  offset: z
    .string()
    .refine((text) => text === '0', 'is not known here; go on with the next_cursor of the answer before')
    .optional(),
  ...listQuery,
})

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
    error_message: z.string().nullable(),
  })
  .meta({ id: 'CloudJob' })

export type CloudJob = z.output<typeof cloudJob>

export const cancelAnswer = z.object({
  success: z.boolean(),
  job_id: z.uuid(),
  status: z.enum(CLOUD_STATUSES),
  error: z.string().nullable(),
})
