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
      request_id: z.string().meta({ description: 'Identifies the request in the log of the server' }),
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
        status: z.int().meta({ description: 'The HTTP status that the same submission would have had by itself' }),
        replayed: z.boolean(),
        body: submitResponse.optional(),
        error: errorBody.shape.error.optional(),
      }),
    )
    .meta({ description: 'One entry for each job, in the same order' }),
})

const runError = z
  .object({
    code: z.string(),
    message: z.string().meta({ description: 'At most 1,000 characters in a list' }),
    traceback: z.string().optional().meta({ description: 'Left out of lists' }),
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
      description: 'CONFIRMING: the worker is silent. The run ends without it at the deadline',
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
  awaits_artifacts: z.boolean().meta({ description: 'The job waits until its artifacts have arrived' }),
  started_at: time.nullable(),
  finished_at: time.nullable(),
  cancel_requested_at: time.nullable(),
  replaces_job_id: z.uuid().nullable(),
  definition: z.string().nullable().meta({ description: 'The definition that made it' }),
  scheduled_for: time.nullable().meta({ description: 'The tick that made it' }),
  error: runError.nullable(),
})

export const job = jobFields.meta({ id: 'Job' }) satisfies z.ZodType<JobShape>

const waitingFor = z
  .object({
    reason: z.enum(WAITING_REASONS),
    message: z.string(),
    queue: z.string().optional(),
    command: z.string().optional().meta({ description: 'A command that would help' }),
    run_at: time.optional(),
    since: time.optional(),
    max_concurrent: z.int().optional(),
    running: z.int().optional(),
    artifacts: z.array(z.string()).optional().meta({ description: 'The names of the missing artifacts' }),
    redrive_id: z.uuid().optional(),
  })
  .meta({ id: 'WaitingFor' }) satisfies z.ZodType<WaitingForShape>

const once = z
  .object({
    duplicates_refused: z.int().meta({
      description:
        'How often its key came with a different request, a second outcome differed, or an event was already stored',
    }),
    replays_served: z
      .int()
      .meta({ description: 'How often a stored answer was given again, to its key or to the same outcome' }),
    stale_writes_fenced: z
      .int()
      .meta({ description: 'How many writes had an old lease, version or epoch and changed nothing' }),
    reassignments: z.int().meta({ description: 'How often it went to another worker before it started' }),
  })
  .meta({ id: 'Once' }) satisfies z.ZodType<OnceShape>

export const jobDetail = jobFields
  .extend({
    payload: z.unknown(),
    policy: z.record(z.string(), z.unknown()),
    traceparent: z.string().nullable(),
    idempotency_key: z.string().nullable(),
    trigger_id: z.uuid().nullable().meta({ description: 'The trigger that made it, while the trigger is kept' }),
    waiting_for: waitingFor.nullable().meta({ description: 'Why no worker has it; null if it does not wait' }),
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
    custom: z.boolean().meta({ description: "True: the limits are the user's own; false: they are those of `*`" }),
    active_jobs: z.int(),
    active_reservations: z.int(),
    spent: z.number(),
    max_bytes: z.int().nullable(),
    used_bytes: z.int().nullable().meta({ description: 'Null: bytes are not counted without a limit' }),
  })
  .meta({ id: 'Quota' }) satisfies z.ZodType<QuotaShape>

export const user = z
  .object({
    ...quota.shape,
    created_at: time.nullable().meta({ description: 'When its first token was made; null: it never had one' }),
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
  token: z.string().meta({ description: 'The secret, shown only in this answer' }),
})

export const stats = z.record(z.enum(JOB_STATES), z.int())

export const page = <T extends z.ZodType>(entry: T) =>
  z.object({ data: z.array(entry), next_cursor: z.string().nullable() })
