import type { CallbackSecretShape, CallbackShape, DeliveryShape, RedrivenDeliveries } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { DELIVERY_STATES, WEBHOOK_EVENTS } from '../core/webhooks/webhook.ts'
import { userName } from './access.ts'
import { listQuery, time } from './common.ts'

/** Messages to webhooks and to callbacks of jobs. */

export const listDeliveriesQuery = z.strictObject({ state: z.enum(DELIVERY_STATES).optional(), ...listQuery })

export const delivery = z
  .object({
    delivery_id: z.uuid().meta({ description: 'The header `webhook-id` of every try' }),
    webhook_id: z.uuid().nullable().meta({ description: 'Null: it goes to the callback of a job' }),
    type: z.enum([...WEBHOOK_EVENTS, 'webhook.test']),
    job_id: z.uuid().nullable().meta({ description: 'Null for alerts and tests' }),
    state: z.enum(DELIVERY_STATES),
    attempts: z.int().meta({ description: 'How often it was sent' }),
    next_at: time.nullable().meta({ description: 'When it is sent next; null unless it is pending' }),
    last_status: z.int().nullable().meta({ description: 'The status of the last answer; null if there was none' }),
    last_error: z.string().nullable(),
    created_at: time,
    ended_at: time.nullable().meta({ description: 'When it was delivered, or its last try failed' }),
  })
  .meta({ id: 'Delivery' }) satisfies z.ZodType<DeliveryShape>

export const redrivenDeliveries = z
  .object({ redriven: z.int() })
  .meta({ id: 'RedrivenDeliveries' }) satisfies z.ZodType<RedrivenDeliveries>

export const callback = z
  .object({
    url: z.string(),
    delivery: delivery
      .nullable()
      .meta({ description: 'About the latest end of the job; null: it has not ended, or the delivery was removed' }),
  })
  .meta({ id: 'Callback' }) satisfies z.ZodType<CallbackShape>

export const callbackSecretQuery = z.strictObject({
  user_id: userName.optional().meta({ description: 'Of another user, for operators; default: the caller' }),
})

export const callbackSecret = z
  .object({
    user_id: z.string(),
    secret: z.string(),
    old_secret_until: time.nullable().meta({
      description: 'Until then messages are also signed with the secret before the last rotation',
    }),
  })
  .meta({ id: 'CallbackSecret' }) satisfies z.ZodType<CallbackSecretShape>
