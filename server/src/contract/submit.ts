import { BACKOFF_LIMITS, COST_MAX, JOB_LIMITS, type NumberLimits, SECONDS_MAX } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { KEY_MAX_LENGTH } from '../core/keys/key.ts'
import { userName } from './access.ts'
import { awaitedArtifacts, uploadTtlSeconds } from './artifacts.ts'
import { name } from './common/name.ts'
import { eventPolicy } from './common/stages.ts'

export { name } from './common/name.ts'

/** The request shapes, once: they check HTTP and in-process calls alike, and OpenAPI is made from them. */

/** A label is asked for as `name:value`, so its name has no colon. */
export const LABEL_NAME_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._-]{0,127}$/
const labelName = z.string().regex(LABEL_NAME_PATTERN, 'must be 1 to 128 letters, digits, dots, dashes or underscores')

export const LABELS_MAX = 32
export const KEY_TTL_HOURS_MAX = 366 * 24

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
    description:
      'The delay before retry n is min(cap, base · 2^n) seconds, less up to the part `jitter` of it at random; the defaults are 10, 300 and 0.1',
  })

export const submitRequest = z
  .strictObject({
    kind: name.meta({ description: 'The kind of work; workers choose jobs by it' }),
    queue: name.optional().meta({ description: 'Default: "default"' }),
    payload: z.unknown().optional().meta({ description: 'Any JSON; the worker gets it unchanged' }),
    priority: numberWithin(JOB_LIMITS.priority).optional().meta({ description: 'The highest goes first; default 0' }),
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
      .meta({ description: 'How many runs may start and fail; default 4' }),
    backoff: backoff.optional(),
    timeout_seconds: numberWithin(JOB_LIMITS.timeoutSeconds)
      .optional()
      .meta({ description: 'The time limit of one run' }),
    lease_ttl_seconds: numberWithin(JOB_LIMITS.leaseTtlSeconds)
      .optional()
      .meta({ description: 'How long a worker may be silent; default: the queue’s, else 60' }),
    continuation_seconds: numberWithin(JOB_LIMITS.continuationSeconds).optional().meta({
      description: 'How much longer the run is reserved for the silent worker; default: the queue’s, else 60',
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
    reservation_id: z.uuid().toLowerCase().optional().meta({ description: 'The reservation whose slot the job takes' }),
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
      .meta({ description: 'How long the key lives; default 24' }),
    artifacts: awaitedArtifacts.optional(),
    upload_ttl_seconds: uploadTtlSeconds.optional(),
  })
  .refine((body) => body.run_at === undefined || body.delay_seconds === undefined, {
    path: ['run_at'],
    error: 'and delay_seconds exclude each other',
  })
  .meta({ id: 'SubmitRequest' })

export type SubmitInput = z.output<typeof submitRequest>

/** Whose job an application submits in its own process. */
export const submitOwner = z.object({ user: userName })
