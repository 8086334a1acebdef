import {
  BACKOFF_LIMITS,
  COST_MAX,
  DEFAULT_BACKOFF,
  DEFAULT_CONTINUATION_SECONDS,
  DEFAULT_KEY_TTL_HOURS,
  DEFAULT_LEASE_TTL_SECONDS,
  DEFAULT_MAX_ATTEMPTS,
  DEFAULT_PRIORITY,
  DEFAULT_QUEUE,
  JOB_LIMITS,
  type KeyShape,
  type NumberLimits,
  SECONDS_MAX,
  type SubmitResponse,
  UNDECLARED_STAGE,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { SEQ_PER_ATTEMPT, SEQ_SCOPES } from '../core/events/event.ts'
import { KEY_MAX_LENGTH } from '../core/keys/key.ts'
import { URL_CHARS_MAX } from '../core/webhooks/webhook.ts'
import { userName } from './access.ts'
import { awaitedArtifacts, uploadTtlSeconds } from './artifacts.ts'
import { errorBody, listQuery, name, state, time, uuid, yesOrNo } from './common.ts'

const { baseSeconds, capSeconds, jitter } = DEFAULT_BACKOFF

/** HTTP and in-process calls check submissions with these schemas, and OpenAPI is generated from them. */

/** A query names a label as `name:value`, so the name has no colon. */
export const LABEL_NAME_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/
const labelName = z.string().regex(LABEL_NAME_PATTERN, 'must be 1 to 128 letters, digits, dots, dashes or underscores')

const LABELS_MAX = 32
const KEY_TTL_HOURS_MAX = 366 * 24
const BATCH_MAX = 1_000
const STAGES_MAX = 100

function numberWithin({ min, max, whole, above = false }: NumberLimits): z.ZodNumber {
  const number: z.ZodNumber = whole ? z.int() : z.number()
  return (above ? number.gt(min) : number.min(min)).max(max)
}

const backoff = z
  .strictObject({
    base_seconds: numberWithin(BACKOFF_LIMITS.baseSeconds).optional(),
    cap_seconds: numberWithin(BACKOFF_LIMITS.capSeconds).optional(),
    jitter: numberWithin(BACKOFF_LIMITS.jitter).optional(),
  })
  .meta({
    description: `The delay before retry n is min(cap, base · 2^n) seconds, less up to the part \`jitter\` of it at random; the defaults are ${baseSeconds}, ${capSeconds} and ${jitter}`,
  })

const seq = z
  .int()
  .min(UNDECLARED_STAGE.to + 1)
  .max(SEQ_PER_ATTEMPT - 1)
export const stage = z.strictObject({
  name,
  from: seq,
  to: seq,
  final: z
    .boolean()
    .optional()
    .meta({ description: 'Marks the last stage, for pages that show progress; the server ignores it' }),
})

const declared = z
  .array(stage)
  .min(1)
  .max(STAGES_MAX)
  .superRefine((list, context) => {
    const refuse = (i: number, field: string, message: string) =>
      context.addIssue({ code: 'custom', path: [i, field], message })
    list.forEach(({ name, from, to, final }, i) => {
      const before = list.slice(0, i)
      if (name === 'run') refuse(i, 'name', 'is reserved for the events of the server')
      if (before.some((other) => other.name === name)) refuse(i, 'name', 'is used twice')
      if (to < from) refuse(i, 'to', 'must not be less than from')
      if (before.some((other) => from <= other.to && to >= other.from)) refuse(i, 'from', 'overlaps another stage')
      if (final && before.some((other) => other.final))
        refuse(i, 'final', 'is set for another stage, too; only one stage can be the last')
    })
  })

/** The fields of a job or a definition about events. */
const eventPolicy = {
  domain: name.optional().meta({ description: 'A group of kinds for its events; default: the kind' }),
  stages: z
    .union([z.literal('eco2'), declared], {
      error: 'must be a list of stages, each with name, from and to, or the preset "eco2"',
    })
    .optional()
    .meta({
      description: 'The range of seq numbers of each stage, or the name of the preset; default: one open stage',
    }),
  seq_scope: z.enum(SEQ_SCOPES).optional().meta({
    description:
      'Whether all attempts share one count (`job`, the default of the preset) or each attempt counts from the start (`attempt`, the default)',
  }),
}

export const submitRequest = z
  .strictObject({
    kind: name.meta({ description: 'The kind of work; workers choose jobs by it' }),
    queue: name.optional().meta({ description: `Default: "${DEFAULT_QUEUE}"` }),
    payload: z.unknown().optional().meta({ description: 'Any JSON; the worker gets it unchanged' }),
    priority: numberWithin(JOB_LIMITS.priority)
      .optional()
      .meta({ description: `The highest goes first; default ${DEFAULT_PRIORITY}` }),
    run_at: z.iso
      .datetime({ offset: true })
      .optional()
      .meta({ description: 'The job does not start before this instant' }),
    delay_seconds: z
      .number()
      .min(0)
      .max(SECONDS_MAX)
      .optional()
      .meta({ description: 'The job does not start before this time has passed' }),
    max_attempts: numberWithin(JOB_LIMITS.maxAttempts)
      .optional()
      .meta({ description: `How many runs may start and fail; default ${DEFAULT_MAX_ATTEMPTS}` }),
    backoff: backoff.optional(),
    timeout_seconds: numberWithin(JOB_LIMITS.timeoutSeconds)
      .optional()
      .meta({ description: 'The time limit of one run' }),
    lease_ttl_seconds: numberWithin(JOB_LIMITS.leaseTtlSeconds)
      .optional()
      .meta({
        description: `How long a worker may be silent; default: the queue’s, else ${DEFAULT_LEASE_TTL_SECONDS}`,
      }),
    continuation_seconds: numberWithin(JOB_LIMITS.continuationSeconds)
      .optional()
      .meta({
        description: `How much longer the run is reserved for the silent worker; default: the queue’s, else ${DEFAULT_CONTINUATION_SECONDS}`,
      }),
    ...eventPolicy,
    labels: z
      .record(labelName, z.string().max(256))
      .refine((labels) => Object.keys(labels).length <= LABELS_MAX, `must have at most ${LABELS_MAX} entries`)
      .optional()
      .meta({ description: `Labels to find jobs by; up to ${LABELS_MAX}` }),
    estimated_cost: z
      .number()
      .min(0)
      .max(COST_MAX)
      .optional()
      .meta({ description: 'Counted against the cost limit; default 0' }),
    traceparent: z
      .string()
      .regex(/^[0-9a-f]{2}-[0-9a-f]{32}-[0-9a-f]{16}-[0-9a-f]{2}$/, 'must be a W3C traceparent')
      .optional()
      .meta({ description: 'W3C trace context, handed to the worker' }),
    callback_url: z.string().max(URL_CHARS_MAX).optional().meta({
      description: 'Gets a signed message about each end of the job; https, and a public address',
    }),
    reservation_id: uuid.optional().meta({ description: 'The reservation whose slot the job takes' }),
    idempotency_key: z
      .string()
      .min(1)
      .max(KEY_MAX_LENGTH)
      .optional()
      .meta({ description: 'The same as the header Idempotency-Key, for clients that cannot send it' }),
    key_ttl_hours: z
      .number()
      .positive()
      .max(KEY_TTL_HOURS_MAX)
      .optional()
      .meta({ description: `How long the key lives; default ${DEFAULT_KEY_TTL_HOURS}` }),
    artifacts: awaitedArtifacts.optional(),
    upload_ttl_seconds: uploadTtlSeconds.optional(),
  })
  .refine((body) => body.run_at === undefined || body.delay_seconds === undefined, {
    path: ['run_at'],
    error: 'and delay_seconds exclude each other',
  })
  .meta({ id: 'SubmitRequest' })

export type SubmitInput = z.output<typeof submitRequest>

/** The owner of a job that an application submits in its own process. */
export const submitOwner = z.object({ user: userName })

/** The items are checked one by one, so that a bad item does not fail the others. */
export const batchRequest = z.strictObject({
  jobs: z
    .array(z.unknown().meta({ $ref: '#/components/schemas/SubmitRequestInput' }))
    .min(1)
    .max(BATCH_MAX),
})

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

export const extendKeyRequest = z.strictObject({
  ttl_hours: z
    .number()
    .positive()
    .max(KEY_TTL_HOURS_MAX)
    .meta({ description: 'How long the key lives from now on; the lifetime is never shortened' }),
})

export const listKeysQuery = z.strictObject({
  active: yesOrNo.optional().meta({ description: 'true: only keys that have not expired' }),
  ...listQuery,
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
