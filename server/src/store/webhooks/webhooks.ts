import type { WebhookEvent } from '@ichido/sdk/protocol'
import { isListOf, isOneOf, stored } from '../../core/json/stored-json.ts'
import { FIRST_ID } from '../../core/run/job.ts'
import type { WebhookFilter } from '../../core/webhooks/webhook.ts'
import { WEBHOOK_EVENTS } from '../../core/webhooks/webhook.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { readHorizon } from '../events/all-events.sql.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { exactlyOne, one, query, type RowOf, statement, type Work } from '../statement.ts'
import { type Secret, toSecret } from './callback-secrets.ts'

const parseEvents = stored('events', isListOf(isOneOf(WEBHOOK_EVENTS)))

/** The columns that a person chooses. */
const CHOSEN = {
  url: 'text',
  description: 'text',
  queue: 'text?',
  kind: 'text?',
  label_name: 'text?',
  label_value: 'text?',
} as const

export const WEBHOOK_ROW = {
  id: 'text',
  ...CHOSEN,
  events: { json: parseEvents },
  secret: 'text',
  old_secret: 'text?',
  old_secret_until: 'integer?',
  disabled_at: 'integer?',
  disabled_reason: 'text?',
  user_id: 'text',
  created_at: 'integer',
  updated_at: 'integer',
} as const

export const WEBHOOK = Object.keys(WEBHOOK_ROW)
  .map((column) => `w.${column}`)
  .join(', ')

/** Guards the number of webhooks: the leader reads all of them for every batch of ends. */
const insertWebhook = statement('insert_webhook', {
  params: { id: 'text', ...CHOSEN, events: 'text', secret: 'text', user_id: 'text', max: 'integer' },
  row: { id: 'text' },
  sql: `INSERT INTO ichido.webhooks (id, url, description, events, queue, kind, label_name, label_value, secret, user_id, created_at, updated_at)
    SELECT $id, $url, $description, $events, $queue, $kind, $label_name, $label_value, $secret, $user_id, now_ms(), now_ms()
    WHERE (SELECT count(*) FROM ichido.webhooks) < $max RETURNING id`,
})

/** The webhook gets the ends from here on. */
export const putPlace = statement('put_webhook_place', {
  params: { id: 'text', tx: 'integer', job_id: 'text', run_no: 'integer' },
  row: {},
  sql: `INSERT INTO ichido.webhook_places (id, tx, job_id, run_no) VALUES ($id, $tx, $job_id, $run_no)
    ON CONFLICT (id) DO UPDATE SET tx = excluded.tx, job_id = excluded.job_id, run_no = excluded.run_no`,
})

const dropPlace = statement('drop_webhook_place', {
  params: { id: 'text' },
  row: {},
  sql: 'DELETE FROM ichido.webhook_places WHERE id = $id',
})

const readWebhook = statement('read_webhook', {
  params: { id: 'text' },
  row: WEBHOOK_ROW,
  sql: `SELECT ${WEBHOOK} FROM ichido.webhooks w WHERE w.id = $id`,
})

export const lockWebhook = statement('lock_webhook', {
  params: { id: 'text' },
  row: WEBHOOK_ROW,
  postgres: `SELECT ${WEBHOOK} FROM ichido.webhooks w WHERE w.id = $id FOR UPDATE`,
  sqlite: `SELECT ${WEBHOOK} FROM ichido.webhooks w WHERE w.id = $id`,
})

const selectWebhooks = statement('list_webhooks', {
  params: { limit: 'integer', after: 'text' },
  row: WEBHOOK_ROW,
  sql: `SELECT ${WEBHOOK} FROM ichido.webhooks w WHERE w.id > $after ORDER BY w.id LIMIT $limit`,
})

/** The webhook is locked. */
const updateWebhook = statement('update_webhook', {
  params: { id: 'text', ...CHOSEN, events: 'text', disabled: 'flag', disabled_reason: 'text?' },
  row: {},
  sql: `UPDATE ichido.webhooks SET url = $url, description = $description, events = $events, queue = $queue, kind = $kind,
      label_name = $label_name, label_value = $label_value, disabled_reason = $disabled_reason, updated_at = now_ms(),
      disabled_at = CASE WHEN $disabled THEN coalesce(disabled_at, now_ms()) END
    WHERE id = $id`,
})

/** The webhook is locked. The secret before stays valid for a while; one that is even older does not. */
const rotateSecret = statement('rotate_webhook_secret', {
  params: { id: 'text', secret: 'text', overlap_ms: 'integer' },
  row: {},
  sql: `UPDATE ichido.webhooks SET old_secret = secret, old_secret_until = now_ms() + $overlap_ms, secret = $secret,
      updated_at = now_ms() WHERE id = $id`,
})

const deleteDeliveries = statement('delete_webhook_deliveries', {
  params: { webhook_id: 'text', max: 'integer' },
  row: { id: 'text' },
  sql: `DELETE FROM ichido.webhook_deliveries WHERE id IN (
      SELECT id FROM ichido.webhook_deliveries WHERE webhook_id = $webhook_id ORDER BY id LIMIT $max) RETURNING id`,
})

const dropWebhook = statement('drop_webhook', {
  params: { id: 'text' },
  row: {},
  sql: 'DELETE FROM ichido.webhooks WHERE id = $id',
})

export interface Webhook extends WebhookFilter, Secret {
  webhookId: string
  url: string
  description: string
  events: readonly WebhookEvent[]
  disabledReason: string | null
  disabled: boolean
  userId: string
  createdAtMs: number
  updatedAtMs: number
}

/** The fields that a person chooses. */
export type Chosen = Pick<Webhook, 'url' | 'description' | 'events' | 'queue' | 'kind' | 'label'>

export interface NewWebhook extends Chosen {
  webhookId: string
  secret: string
  userId: string
}

/** Null: there are too many. */
export function createWebhook(item: NewWebhook, max: number, by: By): Command<Webhook | null> {
  return command('create_webhook', function* work(again): Work<Webhook | null> {
    const { webhookId: id, secret, userId } = item
    const unheard = again ? yield* one(readWebhook, { id }) : undefined
    if (unheard !== undefined) return toWebhook(unheard)
    const made = yield* one(insertWebhook, { id, ...chosenColumns(item), secret, user_id: userId, max })
    if (made === undefined) return null
    yield* listenFromNow(id)
    const webhook = toWebhook(yield* exactlyOne(readWebhook, { id }))
    yield* record(by, 'webhook.create', id, null, describe(webhook))
    return webhook
  })
}

/**
 * Transactions that are running now may still end jobs, so the place is before them. An end in one of them that
 * committed a moment ago is delivered, too.
 */
function* listenFromNow(id: string): Work<void> {
  const { settled } = yield* exactlyOne(readHorizon, {})
  yield* query(putPlace, { id, tx: settled, job_id: FIRST_ID, run_no: 0 })
}

export function findWebhook(webhookId: string): Command<Webhook | null> {
  return command('find_webhook', function* work(): Work<Webhook | null> {
    const row = yield* one(readWebhook, { id: webhookId })
    return row === undefined ? null : toWebhook(row)
  })
}

/** Oldest first. */
export function listWebhooks(limit: number, after: string | null): Command<Listed<Webhook>> {
  return command('list_webhooks', function* work(): Work<Listed<Webhook>> {
    const found = (yield* query(selectWebhooks, { limit: limit + 1, after: after ?? FIRST_ID })).map(toWebhook)
    return pageOf(found, limit, ({ webhookId }) => webhookId)
  })
}

/** Null: there is none. A webhook that is enabled again gets the ends from then on. */
export function changeWebhook(
  webhookId: string,
  change: Partial<Chosen> & { enabled?: boolean },
  by: By,
): Command<Webhook | null> {
  return command('change_webhook', function* work(again): Work<Webhook | null> {
    const row = yield* one(lockWebhook, { id: webhookId })
    if (row === undefined) return null
    const before = toWebhook(row)
    if (yield* isRecorded(again, by)) return before
    const { enabled = !before.disabled, ...chosen } = change
    const reason = enabled ? null : (before.disabledReason ?? 'A person disabled it')
    yield* query(updateWebhook, {
      id: webhookId,
      ...chosenColumns({ ...before, ...chosen }),
      disabled: !enabled,
      disabled_reason: reason,
    })
    if (enabled && before.disabled) yield* listenFromNow(webhookId)
    const after = toWebhook(yield* exactlyOne(readWebhook, { id: webhookId }))
    yield* record(by, 'webhook.update', webhookId, describe(before), describe(after))
    return after
  })
}

/** Null: there is none. */
export function rotateWebhookSecret(
  webhookId: string,
  secret: string,
  overlapMs: number,
  by: By,
): Command<Webhook | null> {
  return command('rotate_webhook_secret', function* work(again): Work<Webhook | null> {
    const row = yield* one(lockWebhook, { id: webhookId })
    if (row === undefined) return null
    if (yield* isRecorded(again, by)) return toWebhook(row)
    yield* query(rotateSecret, { id: webhookId, secret, overlap_ms: overlapMs })
    yield* record(by, 'webhook.rotate-secret', webhookId, null, null)
    return toWebhook(yield* exactlyOne(readWebhook, { id: webhookId }))
  })
}

/** Deliveries that one transaction removes with their webhook. */
const REMOVED_MAX = 5_000

/** `unfinished`: there are more deliveries than one transaction removes, so the caller runs the command again. */
export function deleteWebhook(webhookId: string, by: By): Command<'deleted' | 'unfinished' | 'not_found'> {
  return command('delete_webhook', function* work(again): Work<'deleted' | 'unfinished' | 'not_found'> {
    // A transaction that adds deliveries shares this lock, so none is added afterwards.
    const row = yield* one(lockWebhook, { id: webhookId })
    if (row === undefined) return (yield* isRecorded(again, by)) ? 'deleted' : 'not_found'
    const removed = yield* query(deleteDeliveries, { webhook_id: webhookId, max: REMOVED_MAX })
    if (removed.length === REMOVED_MAX) return 'unfinished'
    yield* query(dropPlace, { id: webhookId })
    yield* query(dropWebhook, { id: webhookId })
    yield* record(by, 'webhook.delete', webhookId, describe(toWebhook(row)), null)
    return 'deleted'
  })
}

function chosenColumns({ url, description, events, queue, kind, label }: Chosen) {
  const labelled = { label_name: label?.name ?? null, label_value: label?.value ?? null }
  return { url, description, events: JSON.stringify(events), queue, kind, ...labelled }
}

/** For the audit, without the secret. The URL may have one in its query, which the audit does not get. */
function describe({ url, events, queue, kind, label, disabled, disabledReason }: Webhook) {
  const { origin, pathname } = new URL(url)
  return {
    url: `${origin}${pathname}`,
    events,
    queue,
    kind,
    label,
    enabled: !disabled,
    disabled_reason: disabledReason,
  }
}

export function toWebhook(row: RowOf<typeof readWebhook>): Webhook {
  const { label_name, label_value } = row
  return {
    webhookId: row.id,
    url: row.url,
    description: row.description,
    events: row.events,
    queue: row.queue,
    kind: row.kind,
    label: label_name === null || label_value === null ? null : { name: label_name, value: label_value },
    ...toSecret(row),
    disabled: row.disabled_at !== null,
    disabledReason: row.disabled_reason,
    userId: row.user_id,
    createdAtMs: row.created_at,
    updatedAtMs: row.updated_at,
  }
}
