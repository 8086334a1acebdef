import type { WebhookChange, WebhookRequest, WebhookSecretShape, WebhookShape } from '@ichido/sdk/protocol'
import { z } from 'zod'
import { URL_CHARS_MAX, WEBHOOK_EVENTS } from '../core/webhooks/webhook.ts'
import { name, time, uuid } from './common.ts'
import { label } from './jobs.ts'

const DESCRIPTION_CHARS_MAX = 500

const url = z.string().max(URL_CHARS_MAX).meta({
  description:
    'Begins with `https://`, and leads to public addresses only. The setting `webhooks_allow_private` allows others',
})
const description = z
  .string()
  .max(DESCRIPTION_CHARS_MAX)
  .refine((text) => !text.includes('\u0000'), 'must not contain NUL')
const events = z
  .array(z.enum(WEBHOOK_EVENTS))
  .min(1)
  .max(WEBHOOK_EVENTS.length)
  .meta({ description: 'Default: all that begin with `job.`' })
const secret = z.string().max(256).meta({
  description: '`whsec_` and 24 to 64 bytes in Base64; default: the server makes one',
})
const filter = {
  queue: name.nullable().optional().meta({ description: 'Only jobs of this queue' }),
  kind: name.nullable().optional().meta({ description: 'Only jobs of this kind' }),
  label: label.nullable().optional(),
}

/** The request as it is sent; the parsed label is an object. */
type Sent<T extends { label?: unknown }> = z.ZodType<unknown, T>

export const createWebhookRequest = z
  .strictObject({
    url,
    description: description.optional(),
    events: events.optional(),
    ...filter,
    secret: secret.optional(),
  })
  .meta({ id: 'WebhookRequest' }) satisfies Sent<WebhookRequest>

export const changeWebhookRequest = z
  .strictObject({
    url: url.optional(),
    description: description.optional(),
    events: events.optional(),
    ...filter,
    enabled: z.boolean().optional().meta({
      description: 'False: the webhook gets no new deliveries, and its pending ones wait',
    }),
  })
  .meta({ id: 'WebhookChange' }) satisfies Sent<WebhookChange>

export const rotateSecretRequest = z.strictObject({ secret: secret.optional() }).meta({ id: 'RotateSecretRequest' })

export const webhookParams = z.object({ webhook_id: uuid })
export const deliveryParams = z.object({ webhook_id: uuid, delivery_id: uuid })

const webhookFields = {
  webhook_id: z.uuid(),
  url: z.string(),
  description: z.string(),
  events: z.array(z.enum(WEBHOOK_EVENTS)),
  queue: z.string().nullable(),
  kind: z.string().nullable(),
  label: z.string().nullable().meta({ description: 'As name:value' }),
  enabled: z.boolean(),
  disabled_reason: z.string().nullable(),
  old_secret_until: time.nullable().meta({
    description: 'Until then messages are also signed with the secret before the last rotation',
  }),
  user_id: z.string().meta({ description: 'Made the webhook' }),
  created_at: time,
  updated_at: time,
}

export const webhook = z.object(webhookFields).meta({ id: 'Webhook' }) satisfies z.ZodType<WebhookShape>

export const webhookWithSecret = z
  .object({ ...webhookFields, secret: z.string().meta({ description: 'Shown only once' }) })
  .meta({ id: 'WebhookWithSecret' }) satisfies z.ZodType<WebhookSecretShape>
