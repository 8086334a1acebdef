import { COST_MAX, ERROR_MESSAGE_MAX, ERROR_TRACEBACK_MAX, JOB_STATES, type LeaseShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { LOG_STREAMS } from '../core/run/run-state.ts'
import { errorBody, name, time } from './common.ts'
import { WAIT_SECONDS_MAX } from './jobs.ts'

export const LEASE_MAX = 1_000
const LEASE_WAIT_SECONDS = 20
const NAMES_MAX = 100
const ITEMS_MAX = 1_000

/** A name by which a worker tells its calls and processes apart. */
const callName = z
  .string()
  .regex(/^[\x21-\x7e]{1,128}$/, 'must be 1 to 128 visible ASCII characters')
  .optional()

const leaseFields = {
  queues: z.array(name).min(1).max(NAMES_MAX).meta({ description: 'The queues to lease from, in this order' }),
  kinds: z.array(name).max(NAMES_MAX).default([]).meta({ description: 'The kinds to lease; empty: any kind' }),
  max: z.int().min(1).max(LEASE_MAX).default(1).meta({ description: 'The maximum number of runs' }),
  start: z.boolean().default(false).meta({ description: 'The runs are RUNNING at once, without a call to `start`' }),
  start_id: callName.meta({ description: 'Identifies the process that starts the runs' }),
  poll_id: callName.meta({ description: 'Identifies the call: a repeated call gets the same leases' }),
}

const waitSeconds = z.number().min(0).max(WAIT_SECONDS_MAX).meta({ description: 'How long to wait' })

export const leaseRequest = z
  .strictObject({ ...leaseFields, wait_seconds: waitSeconds.default(LEASE_WAIT_SECONDS) })
  .meta({ id: 'LeaseRequest' })

/** By default the answer to a report does not wait for work. */
const nextRequest = z
  .strictObject({ ...leaseFields, wait_seconds: waitSeconds.default(0) })
  .optional()
  .meta({ description: 'Leases the next runs in the same call' })

export type LeaseInput = z.output<typeof leaseRequest>

export const leaseId = z.string().regex(/^[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}\.[\w-]{1,64}$/, 'is not a lease_id')

export const leaseParams = z.object({ lease_id: leaseId })

export const startRequest = z.strictObject({
  start_id: callName.unwrap(),
  version: z.int().min(0).optional(),
})

export const heartbeatRequest = z.strictObject({})
export const releaseRequest = z.strictObject({})

export const heartbeatsRequest = z.strictObject({ lease_ids: z.array(leaseId).min(1).max(ITEMS_MAX) })

export const cancelsRequest = z.strictObject({
  known: z.array(leaseId).max(LEASE_MAX).default([]).meta({ description: 'The leases of the last answer' }),
  wait_seconds: waitSeconds.default(LEASE_WAIT_SECONDS),
})

const LOG_N_MAX = 2 ** 31 - 1

export const logsRequest = z.strictObject({
  chunks: z
    .array(
      z.strictObject({
        n: z.int().min(0).max(LOG_N_MAX).meta({ description: 'The worker counts from 0; a repeat is ignored' }),
        stream: z.enum(LOG_STREAMS),
        // The log of a run is limited in bytes, which does not limit empty chunks.
        text: z.string().min(1),
      }),
    )
    .min(1)
    .max(ITEMS_MAX),
})

const guards = {
  version: z.int().min(0).optional().meta({ description: 'The report is refused if the run has another version' }),
  leader_epoch: z
    .int()
    .min(0)
    .optional()
    .meta({ description: 'The report is refused if the run was started under another epoch' }),
}

const resultFields = {
  result: z.unknown().optional(),
  summary_text: z.string().nullable().optional(),
  freqs_csv: z.string().nullable().optional(),
  meta: z.unknown().optional().meta({ description: 'Not part of the outcome; it may differ in a repeat' }),
  cost: z
    .number()
    .min(0)
    .max(COST_MAX)
    .optional()
    .meta({ description: 'The actual cost; it replaces the estimated cost' }),
  ...guards,
}

const kept = (max: number) => `The first ${max.toLocaleString('en')} characters are kept`

const failureFields = {
  error_code: z.string().min(1).max(200),
  error_message: z.string().meta({ description: kept(ERROR_MESSAGE_MAX) }),
  traceback: z
    .string()
    .nullable()
    .optional()
    .meta({ description: kept(ERROR_TRACEBACK_MAX) }),
  retryable: z.boolean().default(true),
  ...guards,
}

export const resultRequest = z.strictObject({ ...resultFields, next: nextRequest }).meta({ id: 'ResultReport' })
export const failedRequest = z.strictObject({ ...failureFields, next: nextRequest }).meta({ id: 'FailureReport' })

export type ResultInput = Omit<z.output<typeof resultRequest>, 'next'>
export type FailureInput = Omit<z.output<typeof failedRequest>, 'next'>

export const resultItem = z.strictObject({ lease_id: leaseId, ...resultFields }).meta({ id: 'ResultItem' })
export const failureItem = z.strictObject({ lease_id: leaseId, ...failureFields }).meta({ id: 'FailureItem' })

/** The items are checked one by one, so that a bad item does not fail the others. */
export const reportRequest = z.strictObject({
  reports: z
    .array(
      z.unknown().meta({
        description: 'A body of `result`, or of `failed` if it has `error_code`, with its `lease_id`',
        type: 'object',
      }),
    )
    .min(1)
    .max(ITEMS_MAX),
  next: nextRequest,
})

const state = z.enum(JOB_STATES)

export const lease = z
  .object({
    job_id: z.uuid(),
    run_id: z.uuid(),
    attempt: z.int(),
    lease_id: z.string(),
    version: z.int(),
    leader_epoch: z.int().nullable(),
    queue: z.string(),
    kind: z.string(),
    payload: z.unknown(),
    lease_ttl_seconds: z.number(),
    continuation_seconds: z.number(),
    timeout_seconds: z.number().nullable(),
    traceparent: z.string().nullable(),
    stages: z
      .record(z.string(), z.object({ from: z.int(), to: z.int() }))
      .nullable()
      .meta({ description: 'The range of seq numbers of each stage; null: one open stage, `progress`' }),
    artifacts: z.array(z.object({ artifact_id: z.uuid(), name: z.string(), sha256: z.string(), size_bytes: z.int() })),
    last_progress: z.unknown().meta({ description: 'The data of the last progress event of earlier attempts' }),
  })
  .meta({ id: 'Lease' }) satisfies z.ZodType<LeaseShape>

const leases = z.array(lease)
export const leasesResponse = z.object({
  leases,
  draining: z.literal(true).optional().meta({ description: 'The worker drains: it gets nothing until it is resumed' }),
})

export const startResponse = z.object({ version: z.int(), leader_epoch: z.int(), repeated: z.boolean() })

export const heartbeatResponse = z.object({
  lease_expires_at: time,
  lease_ttl_seconds: z.number(),
  cancel_requested: z.boolean(),
})

const code = errorBody.shape.error.shape.code

export const heartbeatsResponse = z.object({
  data: z.array(
    z.object({
      lease_id: z.string(),
      held: z.boolean(),
      cancel_requested: z.boolean(),
      lease_expires_at: time.nullable(),
      code: code.nullable(),
    }),
  ),
})

export const cancelsResponse = z.object({ lease_ids: z.array(z.string()) })

export const logsResponse = z.object({ accepted: z.int().meta({ description: 'How many chunks were new' }) })

export const resultResponse = z.object({ state, repeated: z.boolean(), leases: leases.optional() })

const failure = {
  state,
  repeated: z.boolean(),
  requeued: z.boolean().meta({ description: 'The job will be retried' }),
  retry_count: z.int(),
  next_run_at: time.nullable(),
  dead: z.boolean().meta({ description: 'The job is a dead letter now' }),
}

export const failedResponse = z.object({ ...failure, leases: leases.optional() })

export const releaseResponse = z.object({ state })

export const reportResponse = z.object({
  data: z.array(
    z.object({
      lease_id: z.string().nullable(),
      status: z.int().meta({ description: 'The HTTP status that the same report would have had by itself' }),
      state: state.optional(),
      repeated: z.boolean().optional(),
      requeued: z.boolean().optional(),
      retry_count: z.int().optional(),
      next_run_at: time.nullable().optional(),
      dead: z.boolean().optional(),
      error: errorBody.shape.error.optional(),
    }),
  ),
  leases: leases.optional(),
})
