import {
  JOB_ORDERS,
  JOB_STATES,
  type JobCountsShape,
  type JobDetail,
  type JobFilterShape,
  type JobListFilter,
  type JobShape,
  type OnceShape,
  type ResultShape,
  type RunErrorShape,
  type RunShape,
  WAITING_REASONS,
  type WaitingForShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { userName } from './access.ts'
import { dedupeKey, instant, listQuery, name, state, time } from './common.ts'
import { callback } from './deliveries.ts'
import { LABEL_NAME_PATTERN } from './submit.ts'

const states = z
  .string()
  .transform((text) => text.split(','))
  .pipe(z.array(z.enum(JOB_STATES)).max(JOB_STATES.length))
  .meta({ description: `One or more of ${JOB_STATES.join(', ')}, separated by commas` })

export const label = z
  .string()
  .max(512)
  .transform((text, context) => {
    const [labelName = '', ...value] = text.split(':')
    if (LABEL_NAME_PATTERN.test(labelName) && value.length > 0 && !text.includes('\u0000')) {
      return { name: labelName, value: value.join(':') }
    }
    context.addIssue({ code: 'custom', message: 'must be name:value' })
    return z.NEVER
  })
  .meta({ description: 'A label of the job, as name:value' })

/** The first part is the time of the id, in milliseconds, so an index finds the few ids that begin with it. */
export const SHORT_ID_PATTERN = /^[0-9a-f]{8}-[0-9a-f]{4}(?:…|\.\.\.)[0-9a-f]{4,12}$/i

/** Ten years. */
const WAITING_SECONDS_MAX = 315_360_000

/** PostgreSQL cannot hold NUL. */
export const searchText = z
  .string()
  .min(1)
  .max(256)
  .refine((text) => !text.includes('\u0000'), { error: 'must not contain NUL' })

const searched = searchText.meta({
  description:
    "A text in the kind, a label's value, the message of the latest run's error, or a payload of up to 4 KiB; the case does not matter",
})

const key = dedupeKey.meta({ description: 'The idempotency key that the job was submitted with' })

const shortId = z
  .string()
  .max(40)
  .toLowerCase()
  .regex(SHORT_ID_PATTERN, {
    error: 'must be the first 13 characters of an id, … or ..., and its last 4 to 12 characters',
  })
  .transform((text) => text.replace('...', '…'))
  .meta({
    description: 'The short form of an id: its first 13 characters, `…` or `...`, and its last 4 to 12 characters',
  })

/** The SDK has the same names, so that the library and a client can send each of them. */
const jobFilterFields = {
  state: states.optional(),
  queue: name.optional(),
  kind: name.optional(),
  user_id: userName.optional(),
  label: label.optional(),
  key: key.optional(),
  short_id: shortId.optional(),
  error_code: searchText.optional().meta({ description: "The code of the latest run's error" }),
  text: searched.optional(),
  waiting_longer_than_seconds: z.coerce
    .number()
    .min(0)
    .max(WAITING_SECONDS_MAX)
    .optional()
    .meta({ description: 'Due for longer than this, and no worker has it' }),
  created_after: instant.optional().meta({ description: 'Made at this instant or later' }),
  created_before: instant.optional().meta({ description: 'Made before this instant' }),
}

export const jobFilter = z.strictObject(jobFilterFields satisfies Record<keyof JobFilterShape, z.ZodType>)
export type JobFilterInput = z.output<typeof jobFilter>

const order = z
  .enum(JOB_ORDERS)
  .default('newest')
  .meta({ description: 'By age. No index leads to jobs by their duration, so they cannot be listed by it' })

export const listJobsQuery = z.strictObject({ ...jobFilterFields, order, ...listQuery } satisfies Record<
  keyof JobListFilter,
  z.ZodType
>)

const stateCount = z.object({
  count: z.int(),
  capped: z.boolean().meta({ description: 'There may be more: the server looks at a limited number of jobs' }),
})

export const jobCounts = z
  .object({
    total: z.int(),
    capped: z.boolean().meta({ description: 'True if one of the counts is capped' }),
    by_state: z
      .partialRecord(z.enum(JOB_STATES), stateCount)
      .meta({ description: 'The states that the filter allows' }),
  })
  .meta({ id: 'JobCounts' }) satisfies z.ZodType<JobCountsShape>

/** Proxies commonly cut a request off after 60 s. */
export const WAIT_SECONDS_MAX = 50

const waitSeconds = z.coerce
  .number()
  .min(0)
  .max(WAIT_SECONDS_MAX)
  .default(0)
  .meta({ description: 'How long the call waits for something new' })

export const resultQuery = z.strictObject({ wait_seconds: waitSeconds })

export const eventsQuery = z.strictObject({
  after: z.coerce
    .number()
    .int()
    .min(0)
    .optional()
    .meta({ description: 'The cursor of the last event that the caller has seen' }),
  last_seq: z.coerce
    .number()
    .int()
    .min(0)
    .optional()
    .meta({ description: 'Instead of `after`: the seq of the last event that the caller has seen' }),
  stream_token: z
    .string()
    .max(1_000)
    .optional()
    .meta({ description: 'A stream token for this job, in place of an API token, which does not belong in a URL' }),
  wait_seconds: waitSeconds,
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
    callback: callback.nullable().meta({ description: 'Gets a message about each end of the job' }),
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
