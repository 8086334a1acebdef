import {
  type DeliveryShape,
  type DeliveryState,
  IchidoError,
  type Page,
  type RedrivenDeliveries,
  type WebhookSecretShape,
  type WebhookShape,
} from '@ichido/sdk/protocol'
import type { Caller } from '../../core/limits/roles.ts'
import { hookSecretProblem } from '../../core/schedule/hook-signature.ts'
import { JOB_EVENTS, type WebhookFilter } from '../../core/webhooks/webhook.ts'
import { addTest, countDeliveries, listDeliveries, redriveDelivery } from '../../store/webhooks/deliveries.ts'
import * as store from '../../store/webhooks/webhooks.ts'
import { iso, isoOrNull, notFound, renderPage, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { redriveAllDead, renderDelivery } from './deliveries.ts'
import { findReceiver } from './receiver.ts'
import { newSecret, SECRET_OVERLAP_MS } from './secrets.ts'

const WEBHOOKS_MAX = 1_000

/** The fields of a webhook that a person chooses. */
type Chosen = Pick<store.Webhook, 'url' | 'description' | 'events'> & Pick<WebhookFilter, 'queue' | 'kind' | 'label'>

export interface WebhookService {
  create(caller: Caller, input: Partial<Chosen> & { url: string; secret?: string }): Promise<WebhookSecretShape>
  get(webhookId: string): Promise<WebhookShape>
  list(limit: number, after: string | null): Promise<Page<WebhookShape>>
  change(caller: Caller, webhookId: string, change: Partial<Chosen> & { enabled?: boolean }): Promise<WebhookShape>
  rotate(caller: Caller, webhookId: string, secret?: string): Promise<WebhookSecretShape>
  remove(caller: Caller, webhookId: string): Promise<void>
  /** Sends a message without news. */
  test(webhookId: string): Promise<DeliveryShape>
  deliveries(
    webhookId: string,
    state: DeliveryState | null,
    limit: number,
    after: string | null,
  ): Promise<Page<DeliveryShape>>
  redrive(caller: Caller, webhookId: string, deliveryId: string): Promise<DeliveryShape>
  /** All dead deliveries of a webhook. */
  redriveDead(caller: Caller, webhookId: string): Promise<RedrivenDeliveries>
  /** For metrics. */
  counts(): Promise<{ pending: number; dead: number }>
}

export function createWebhookService({ world, store: db, bus, courier, settings }: Deps): WebhookService {
  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  async function requireReceiver(url: string): Promise<void> {
    if (courier === undefined) throw new Error('This node has no courier')
    const receiver = await findReceiver(courier, url, settings.get('webhooks_allow_private') === 1)
    if ('problem' in receiver) throw invalid('url', receiver.problem)
  }

  function found<T>(webhookId: string, value: T | null): T {
    if (value === null) throw notFound('webhook', webhookId)
    return value
  }

  async function find(webhookId: string): Promise<store.Webhook> {
    requireId('webhook', webhookId)
    return found(webhookId, await db.read(store.findWebhook(webhookId)))
  }

  return {
    async create(caller, { url, description = '', events = JOB_EVENTS, secret, ...filter }) {
      requireSecret(secret)
      await requireReceiver(url)
      const { queue = null, kind = null, label = null } = filter
      const ids = { webhookId: world.uuid(), userId: caller.userId, secret: secret ?? newSecret(world) }
      const item = { ...ids, url, description, events: [...new Set(events)], queue, kind, label }
      const made = await db.write(store.createWebhook(item, WEBHOOKS_MAX, by(caller)))
      if (made === null)
        throw new IchidoError('MAXIMUM_REACHED', `There are ${WEBHOOKS_MAX} webhooks, which is the maximum`)
      return { ...render(made), secret: made.secret }
    },

    async get(webhookId) {
      return render(await find(webhookId))
    },

    async list(limit, after) {
      return renderPage(await db.read(store.listWebhooks(limit, after)), render)
    },

    async change(caller, webhookId, change) {
      requireId('webhook', webhookId)
      if (change.url !== undefined) await requireReceiver(change.url)
      const changed = await db.write(store.changeWebhook(webhookId, change, by(caller)))
      bus.wake(['webhooks'])
      return render(found(webhookId, changed))
    },

    async rotate(caller, webhookId, secret) {
      requireId('webhook', webhookId)
      requireSecret(secret)
      const change = store.rotateWebhookSecret(webhookId, secret ?? newSecret(world), SECRET_OVERLAP_MS, by(caller))
      const webhook = found(webhookId, await db.write(change))
      return { ...render(webhook), secret: webhook.secret }
    },

    async remove(caller, webhookId) {
      requireId('webhook', webhookId)
      const who = by(caller)
      for (;;) {
        const outcome = await db.write(store.deleteWebhook(webhookId, who))
        if (outcome === 'not_found') throw notFound('webhook', webhookId)
        if (outcome === 'deleted') return
      }
    },

    async test(webhookId) {
      requireId('webhook', webhookId)
      const test = { id: world.uuid(), atMs: world.now() }
      const delivery = found(webhookId, await db.write(addTest(webhookId, test)))
      bus.wake(['webhooks'])
      return renderDelivery(delivery)
    },

    async deliveries(webhookId, state, limit, after) {
      await find(webhookId)
      return renderPage(await db.read(listDeliveries(webhookId, state, limit, after)), renderDelivery)
    },

    async redrive(caller, webhookId, deliveryId) {
      await find(webhookId)
      requireId('delivery', deliveryId)
      const delivery = await db.write(redriveDelivery(webhookId, deliveryId, by(caller)))
      if (delivery === null) throw notFound('delivery', deliveryId)
      bus.wake(['webhooks'])
      return renderDelivery(delivery)
    },

    async redriveDead(caller, webhookId) {
      await find(webhookId)
      const redriven = await redriveAllDead(db, webhookId, () => by(caller))
      bus.wake(['webhooks'])
      return { redriven }
    },

    counts: () => db.read(countDeliveries()),
  }
}

function requireSecret(secret: string | undefined): void {
  const problem = secret === undefined ? null : hookSecretProblem('standard', secret)
  if (problem !== null) throw invalid('secret', problem)
}

function invalid(field: string, problem: string): IchidoError {
  return new IchidoError('INVALID_PAYLOAD', `${field} ${problem}`, { field })
}

function render(webhook: store.Webhook): WebhookShape {
  const { label, oldSecret } = webhook
  return {
    webhook_id: webhook.webhookId,
    url: webhook.url,
    description: webhook.description,
    events: [...webhook.events],
    queue: webhook.queue,
    kind: webhook.kind,
    label: label === null ? null : `${label.name}:${label.value}`,
    enabled: !webhook.disabled,
    disabled_reason: webhook.disabledReason,
    old_secret_until: isoOrNull(oldSecret?.untilMs ?? null),
    user_id: webhook.userId,
    created_at: iso(webhook.createdAtMs),
    updated_at: iso(webhook.updatedAtMs),
  }
}
