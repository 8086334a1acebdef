import type {
  DetachedShape,
  EnrollTokenShape,
  RegisteredShape,
  RenewedShape,
  RevokedShape,
  WorkerShape,
} from '@ichido/sdk/protocol'
import { WORKER_STATES } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { listQuery } from './common/list.ts'
import { name } from './submit.ts'

export const QUEUES_MAX = 100
const META_BYTES_MAX = 16 * 1024
const ENROLL_TTL_SECONDS_MAX = 30 * 24 * 3600

const time = z.iso.datetime()
export const shownText = z
  .string()
  .max(128)
  .regex(/^\P{Cc}*$/u, 'must not have control characters')
const shownName = shownText.min(1)
const secret = z.string().min(1).max(256)
const queues = z.array(name).min(1).max(QUEUES_MAX)

export const enrollRequest = z.strictObject({
  label: shownName.optional().meta({ description: 'For people; the name of the worker unless it brings its own' }),
  queues: queues.optional().meta({ description: 'The queues that the worker may lease from; without them, all' }),
  ttl_seconds: z
    .int()
    .min(1)
    .max(ENROLL_TTL_SECONDS_MAX)
    .optional()
    .meta({ description: 'The token registers one worker, within this time; default 3600' }),
  worker_id: z
    .uuid()
    .toLowerCase()
    .optional()
    .meta({ description: 'A worker that is to register anew and stay who it is' }),
})

export const registerRequest = z.strictObject({
  enroll_token: secret,
  name: shownName.optional(),
  queues: queues.optional().meta({ description: 'Some of those that the enroll token allows; without them, all' }),
  meta: z
    .record(z.string(), z.unknown())
    .refine(
      (meta) => Buffer.byteLength(JSON.stringify(meta)) <= META_BYTES_MAX,
      `must be at most ${META_BYTES_MAX} bytes`,
    )
    .optional()
    .meta({ description: 'Anything about the machine, for people' }),
  worker_id: z.uuid().toLowerCase().optional().meta({ description: 'Who the worker was before; its leases stay' }),
  worker_token: secret.optional().meta({ description: 'Its token of before, expired or not, which proves it' }),
  register_id: z.string().min(16).max(128).optional().meta({
    description: 'Random, of the worker’s own making: with it a registration whose answer got lost is sent again',
  }),
})

export const listWorkersQuery = z.strictObject(listQuery)

const shownQueues = z.array(z.string()).nullable().meta({ description: 'null: all queues' })

export const enrollToken = z
  .object({
    enroll_token: z.string().meta({ description: 'The secret; it is shown only here' }),
    expires_at: time,
    ttl_seconds: z.int(),
    label: z.string().nullable(),
    queues: shownQueues,
    public_url: z.string().nullable().meta({ description: 'Where workers reach the server, if it knows' }),
  })
  .meta({ id: 'EnrollToken' }) satisfies z.ZodType<EnrollTokenShape>

export const registered = z
  .object({
    worker_id: z.string(),
    worker_token: z.string().meta({ description: 'The secret; it is shown only here' }),
    expires_at: time.meta({ description: 'Of the token; renew it before' }),
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

export const worker = z
  .object({
    worker_id: z.string(),
    name: z.string(),
    state: z
      .enum(WORKER_STATES)
      .meta({ description: 'online: heard of in the last 90 seconds; detached: it said that it stops' }),
    queues: shownQueues,
    meta: z.record(z.string(), z.unknown()),
    registered_at: time,
    last_seen_at: time.nullable(),
    token_expires_at: time.nullable(),
    detached_at: time.nullable(),
    revoked_at: time.nullable(),
    live_leases: z.int(),
  })
  .meta({ id: 'Worker' }) satisfies z.ZodType<WorkerShape>

export const revoked = z
  .object({
    worker_id: z.string(),
    revoked_at: time,
    fenced_leases: z.int().meta({ description: 'Leases that it held; nothing it reports by them counts any more' }),
    revoked_tokens: z.int(),
  })
  .meta({ id: 'RevokedWorker' }) satisfies z.ZodType<RevokedShape>
