import {
  DEFAULT_ENROLL_TTL_SECONDS,
  type DetachedShape,
  type EnrollTokenShape,
  type HeldRunShape,
  type RegisteredShape,
  type RenewedShape,
  type RevokedShape,
  WORKER_STATES,
  type WorkerShape,
} from '@ichido/sdk/protocol'
import { z } from 'zod'
import { name, time, uuid } from './common.ts'

export const QUEUES_MAX = 100
const META_BYTES_MAX = 16 * 1024
const ENROLL_TTL_SECONDS_MAX = 30 * 24 * 3600

export const shownText = z
  .string()
  .max(128)
  .regex(/^\P{Cc}*$/u, 'must not have control characters')
const shownName = shownText.min(1)
const secret = z.string().min(1).max(256)
const queues = z.array(name).min(1).max(QUEUES_MAX)
const meta = z
  .record(z.string(), z.unknown())
  .refine(
    (meta) => Buffer.byteLength(JSON.stringify(meta)) <= META_BYTES_MAX,
    `must be at most ${META_BYTES_MAX} bytes`,
  )
  .optional()
  .meta({ description: 'Any facts about the machine, for people' })

export const enrollRequest = z.strictObject({
  label: shownName
    .optional()
    .meta({ description: 'A label for people; it is the name of the worker if the worker sends none' }),
  queues: queues.optional().meta({ description: 'The queues that the worker may lease from; default: all' }),
  ttl_seconds: z
    .int()
    .min(1)
    .max(ENROLL_TTL_SECONDS_MAX)
    .optional()
    .meta({ description: `How long the token can register a worker; default ${DEFAULT_ENROLL_TTL_SECONDS}` }),
  worker_id: uuid.optional().meta({ description: 'The worker that registers again and keeps its identity' }),
})

export const registerRequest = z.strictObject({
  enroll_token: secret,
  name: shownName.optional(),
  queues: queues
    .optional()
    .meta({ description: 'Some of the queues that the enroll token allows; default: all of them' }),
  meta,
  worker_id: uuid.optional().meta({ description: 'The earlier id of the worker, to keep its leases' }),
  worker_token: secret
    .optional()
    .meta({ description: 'The last token of the worker as proof of its identity; it may have expired' }),
  register_id: z.string().min(16).max(128).optional().meta({
    description: 'A random text that the worker makes, so that it can repeat a registration whose answer got lost',
  }),
})

/** Without `meta`, the facts stay. */
export const renewRequest = z.strictObject({ meta }).nullish()

const shownQueues = z.array(z.string()).nullable().meta({ description: 'Null: all queues' })

export const enrollToken = z
  .object({
    enroll_token: z.string().meta({ description: 'The secret, shown only in this answer' }),
    expires_at: time,
    ttl_seconds: z.int(),
    label: z.string().nullable(),
    queues: shownQueues,
    public_url: z.string().nullable().meta({ description: 'The URL of the server for workers, if it is known' }),
  })
  .meta({ id: 'EnrollToken' }) satisfies z.ZodType<EnrollTokenShape>

export const registered = z
  .object({
    worker_id: z.string(),
    worker_token: z.string().meta({ description: 'The secret, shown only in this answer' }),
    expires_at: time.meta({ description: 'When the token expires; renew it before' }),
    name: z.string(),
    queues: shownQueues,
    registered_at: time,
  })
  .meta({ id: 'RegisteredWorker' }) satisfies z.ZodType<RegisteredShape>

export const renewed = z
  .object({ worker_token: z.string(), expires_at: time })
  .meta({ id: 'RenewedToken' }) satisfies z.ZodType<RenewedShape>

export const detached = z
  .object({ worker_id: z.string(), detached_at: time })
  .meta({ id: 'DetachedWorker' }) satisfies z.ZodType<DetachedShape>

const heldRun = z
  .object({
    job_id: z.uuid(),
    kind: z.string(),
    queue: z.string(),
    attempt: z.int(),
    assigned_at: time,
    started_at: time.nullable(),
  })
  .meta({ id: 'HeldRun' }) satisfies z.ZodType<HeldRunShape>

export const worker = z
  .object({
    worker_id: z.string(),
    name: z.string(),
    state: z
      .enum(WORKER_STATES)
      .meta({ description: 'online: it called in the last 90 seconds; detached: it reported that it stops' }),
    queues: shownQueues,
    meta: z.record(z.string(), z.unknown()),
    registered_at: time,
    last_seen_at: time.nullable(),
    token_expires_at: time.nullable(),
    detached_at: time.nullable(),
    draining_since: time.nullable().meta({ description: 'Since when it gets no new runs; null: it does not drain' }),
    revoked_at: time.nullable(),
    live_leases: z.int().meta({ description: 'How many runs it holds' }),
    holds: z.array(heldRun).meta({ description: 'The 20 runs that it has held longest' }),
  })
  .meta({ id: 'Worker' }) satisfies z.ZodType<WorkerShape>

export const revoked = z
  .object({
    worker_id: z.string(),
    revoked_at: time,
    fenced_leases: z.int().meta({ description: 'How many leases it held; later reports with them are refused' }),
    revoked_tokens: z.int(),
  })
  .meta({ id: 'RevokedWorker' }) satisfies z.ZodType<RevokedShape>
