import type {
  ErrorBody,
  JobDetail,
  JobShape,
  KeyShape,
  OnceShape,
  QuotaShape,
  ReservationShape,
  ResultShape,
  RunErrorShape,
  RunShape,
  SubmitResponse,
  TokenShape,
  UserShape,
  WaitingForShape,
} from '@ichido/sdk/protocol'
import { ERRORS, JOB_STATES, ROLES, WAITING_REASONS } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { event } from '../events.ts'

/** What is answered, for the API's description; the compiler holds each against the shape that the services return. */

const time = z.iso.datetime()
const state = z.enum(JOB_STATES).meta({ id: 'JobState' })

const errorCodes = Object.keys(ERRORS) as [keyof typeof ERRORS]

export const errorBody = z
  .object({
    error: z.object({
      code: z.enum(errorCodes),
      message: z.string(),
      details: z.record(z.string(), z.unknown()),
      request_id: z.string().meta({ description: 'Leads to the log of the server' }),
    }),
  })
  .meta({ id: 'Error' }) satisfies z.ZodType<ErrorBody>

export const submitResponse = z
  .object({
    job_id: z.uuid(),
    kind: z.string(),
    queue: z.string(),
    state,
    created_at: time,
    run_at: time,
    quota_warnings: z.array(z.string()),
    cost_limit_warning: z.string().nullable(),
  })
  .meta({ id: 'SubmitResponse' }) satisfies z.ZodType<SubmitResponse>

export const batchResponse = z.object({
  data: z
    .array(
      z.object({
        status: z.int().meta({ description: 'What the same submission would have been answered with by itself' }),
        replayed: z.boolean(),
        body: submitResponse.optional(),
        error: errorBody.shape.error.optional(),
      }),
    )
    .meta({ description: 'One for each job, in their order' }),
})

const runError = z
  .object({
    code: z.string(),
    message: z.string().meta({ description: 'In a list at most 1,000 characters' }),
    traceback: z.string().optional().meta({ description: 'Not in a list' }),
  })
  .meta({ id: 'RunError' }) satisfies z.ZodType<RunErrorShape>

const run = z
  .object({
    run_id: z.uuid(),
    run_no: z.int(),
    state,
    version: z.int(),
    attempt: z.int(),
    retry_count: z.int(),
    run_at: time,
    created_at: time,
    assigned_worker_id: z.string().nullable(),
    assigned_at: time.nullable(),
    lease_expires_at: time.nullable(),
    started_at: time.nullable(),
    finished_at: time.nullable(),
    continuation_state: z.enum(['NONE', 'CONFIRMING']).meta({
      description:
        'CONFIRMING: the worker has not been heard of, and has until the deadline before the run ends without it',
    }),
    continuation_check_deadline_at: time.nullable(),
    cancel_requested_at: time.nullable(),
    error: runError.nullable(),
  })
  .meta({ id: 'Run' }) satisfies z.ZodType<RunShape>

const jobFields = z.object({
  job_id: z.uuid(),
  kind: z.string(),
  queue: z.string(),
  user_id: z.string(),
  state,
  priority: z.int(),
  attempt: z.int(),
  retry_count: z.int(),
  labels: z.record(z.string(), z.string()),
  estimated_cost: z.number(),
  created_at: time,
  run_at: time,
  awaits_artifacts: z.boolean().meta({ description: 'Held back until its artifacts have been sent' }),
  started_at: time.nullable(),
  finished_at: time.nullable(),
  cancel_requested_at: time.nullable(),
  replaces_job_id: z.uuid().nullable(),
  definition: z.string().nullable().meta({ description: 'The definition that it was made by' }),
  scheduled_for: time.nullable().meta({ description: 'The tick that it was made for' }),
  error: runError.nullable(),
})

export const job = jobFields.meta({ id: 'Job' }) satisfies z.ZodType<JobShape>

const waitingFor = z
  .object({
    reason: z.enum(WAITING_REASONS),
    message: z.string(),
    queue: z.string().optional(),
    command: z.string().optional().meta({ description: 'What would help' }),
    run_at: time.optional(),
    since: time.optional(),
    max_concurrent: z.int().optional(),
    running: z.int().optional(),
    artifacts: z.array(z.string()).optional().meta({ description: 'Names of those that have not come' }),
    redrive_id: z.uuid().optional(),
  })
  .meta({ id: 'WaitingFor' }) satisfies z.ZodType<WaitingForShape>

const once = z
  .object({
    duplicates_refused: z.int().meta({
      description: 'Its key with another request, a second outcome that differs, events that were stored before',
    }),
    replays_served: z.int().meta({ description: 'Stored answers given again: to its key, or to the same outcome' }),
    stale_writes_fenced: z
      .int()
      .meta({ description: 'Writes with an old lease, version or epoch; they changed nothing' }),
    reassignments: z.int().meta({ description: 'Handed to another worker without having started' }),
  })
  .meta({ id: 'Once' }) satisfies z.ZodType<OnceShape>

export const jobDetail = jobFields
  .extend({
    payload: z.unknown(),
    policy: z.record(z.string(), z.unknown()),
    traceparent: z.string().nullable(),
    idempotency_key: z.string().nullable(),
    trigger_id: z.uuid().nullable().meta({ description: 'The trigger that made it, for as long as that is kept' }),
    waiting_for: waitingFor.nullable().meta({ description: 'Why nobody works on it; null when it does not wait' }),
    runs: z.array(run),
    once,
  })
  .meta({ id: 'JobDetail' }) satisfies z.ZodType<JobDetail>

export const result = z
  .object({
    job_id: z.uuid(),
    state,
    result: z.unknown(),
    summary_text: z.string().nullable(),
    freqs_csv: z.string().nullable(),
    meta: z.unknown(),
    cost: z.number().nullable(),
    finished_at: time.nullable(),
  })
  .meta({ id: 'Result' }) satisfies z.ZodType<ResultShape>

export const events = z.object({
  events: z.array(event),
  ended: z.boolean().meta({ description: 'No further event can come' }),
})

export const key = z
  .object({
    key: z.string(),
    user_id: z.string(),
    operation: z.string(),
    job_id: z.uuid(),
    request_hash: z.string(),
    active: z.boolean(),
    created_at: time,
    expires_at: time,
  })
  .meta({ id: 'IdempotencyKey' }) satisfies z.ZodType<KeyShape>

const reservationFields = z.object({
  reservation_id: z.uuid(),
  user_id: z.string(),
  state: z.enum(['active', 'consumed', 'released', 'expired']),
  created_at: time,
  expires_at: time,
  job_id: z.uuid().nullable(),
})

export const reservation = reservationFields.meta({ id: 'Reservation' }) satisfies z.ZodType<ReservationShape>

export const newReservation = reservationFields
  .extend({ quota_warnings: z.array(z.string()) })
  .meta({ id: 'NewReservation' })

export const quota = z
  .object({
    user_id: z.string(),
    max_concurrent: z.int().nullable(),
    cost_limit: z.number().nullable(),
    period: z.enum(['day', 'month']),
    custom: z.boolean().meta({ description: "Whether the limits are the user's own; otherwise they are those of `*`" }),
    active_jobs: z.int(),
    active_reservations: z.int(),
    spent: z.number(),
    max_bytes: z.int().nullable(),
    used_bytes: z.int().nullable().meta({ description: 'Null: without a limit they are not counted' }),
  })
  .meta({ id: 'Quota' }) satisfies z.ZodType<QuotaShape>

export const user = z
  .object({
    ...quota.shape,
    created_at: time.nullable().meta({ description: 'When its first token was made; null: it has come without one' }),
  })
  .meta({ id: 'User' }) satisfies z.ZodType<UserShape>

export const token = z
  .object({
    token_id: z.uuid(),
    user_id: z.string(),
    role: z.enum(ROLES),
    name: z.string(),
    created_at: time,
    expires_at: time.nullable(),
    revoked_at: time.nullable(),
  })
  .meta({ id: 'Token' }) satisfies z.ZodType<TokenShape>

export const newToken = z.object({
  token_id: z.uuid(),
  token: z.string().meta({ description: 'The secret; it is shown only here' }),
})

export const stats = z.record(z.enum(JOB_STATES), z.int())

export const page = <T extends z.ZodType>(entry: T) =>
  z.object({ data: z.array(entry), next_cursor: z.string().nullable() })
