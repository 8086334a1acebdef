import type { DeliveryShape, DeliveryState } from '@ichido/sdk/protocol'
import { LAST_ID } from '../../core/run/job.ts'
import { DELIVERY_STATES, WEBHOOK_EVENTS } from '../../core/webhooks/webhook.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { each, one, query, type RowOf, type SqlValue, select, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import { insert, message, toRow } from './derive-deliveries.ts'
import { holdTerm } from './ends.sql.ts'
import { lockWebhook, toWebhook, WEBHOOK, WEBHOOK_ROW, type Webhook } from './webhooks.ts'

export const DELIVERY_TYPES = [...WEBHOOK_EVENTS, 'webhook.test'] as const

const DELIVERY_ROW = {
  id: 'text',
  webhook_id: 'text',
  type: { oneOf: DELIVERY_TYPES },
  subject_id: 'text',
  state: { oneOf: DELIVERY_STATES },
  attempts: 'integer',
  next_at: 'integer?',
  last_status: 'integer?',
  last_error: 'text?',
  created_at: 'integer',
  ended_at: 'integer?',
} as const
const DELIVERY = Object.keys(DELIVERY_ROW).join(', ')

const readSending = statement('read_sending_webhooks', {
  params: {},
  row: { ...WEBHOOK_ROW, now: 'integer' },
  sql: `SELECT ${WEBHOOK}, now_ms() AS now FROM ichido.webhooks w WHERE w.disabled_at IS NULL ORDER BY w.id`,
})

const DUE_ROW = {
  id: 'text',
  webhook_id: 'text',
  payload: 'text',
  attempts: 'integer',
  failures: 'integer',
  next_at: 'integer',
} as const

/** An earlier message about the same subject goes first: the messages of a job arrive in their order. */
const due = (webhook: string, max: string) => `SELECT ${Object.keys(DUE_ROW)
  .map((column) => `d.${column}`)
  .join(', ')} FROM ichido.webhook_deliveries d
      WHERE d.webhook_id = ${webhook} AND d.next_at IS NOT NULL AND d.next_at <= (SELECT now_ms())
        AND (SELECT count(*) FROM ichido.webhook_deliveries p WHERE p.webhook_id = d.webhook_id AND p.subject_id = d.subject_id
          AND p.subject_n < d.subject_n AND p.state = 'pending') = 0
      ORDER BY d.next_at, d.id LIMIT ${max}`

const readDue = statement('read_due_deliveries', {
  params: { webhook_id: 'text', max: 'integer' },
  row: DUE_ROW,
  postgres: `SELECT f.* FROM unnest($webhook_id::uuid[], $max::integer[]) AS t(webhook_id, max)
    CROSS JOIN LATERAL (${due('t.webhook_id', 't.max')}) f`,
  sqlite: due('$webhook_id', '$max'),
})

/** Guards that no other try was recorded since this one began. The term is held. */
const recordTry = statement('record_delivery_try', {
  params: {
    id: 'text',
    attempts: 'integer',
    state: { oneOf: DELIVERY_STATES },
    failures: 'integer',
    wait_ms: 'integer?',
    status: 'integer?',
    error: 'text?',
  },
  row: { id: 'text' },
  sql: `UPDATE ichido.webhook_deliveries SET attempts = attempts + 1, state = $state, failures = $failures,
      next_at = now_ms() + CAST($wait_ms AS bigint), last_status = $status, last_error = $error,
      ended_at = CASE WHEN CAST($wait_ms AS bigint) IS NULL THEN now_ms() END
    WHERE id = $id AND attempts = $attempts AND state = 'pending' RETURNING id`,
})

const disableWebhook = statement('disable_webhook', {
  params: { id: 'text', reason: 'text' },
  row: { id: 'text' },
  sql: `UPDATE ichido.webhooks SET disabled_at = now_ms(), disabled_reason = $reason, updated_at = now_ms()
    WHERE id = $id AND disabled_at IS NULL RETURNING id`,
})

const readDelivery = statement('read_delivery', {
  params: { id: 'text', webhook_id: 'text' },
  row: DELIVERY_ROW,
  sql: `SELECT ${DELIVERY} FROM ichido.webhook_deliveries WHERE id = $id AND webhook_id = $webhook_id`,
})

const AGAIN = `state = 'pending', failures = 0, next_at = now_ms(), ended_at = NULL`

const redriveOne = statement('redrive_delivery', {
  params: { id: 'text', webhook_id: 'text' },
  row: DELIVERY_ROW,
  sql: `UPDATE ichido.webhook_deliveries SET ${AGAIN} WHERE id = $id AND webhook_id = $webhook_id RETURNING ${DELIVERY}`,
})

const redriveDead = statement('redrive_dead_deliveries', {
  params: { webhook_id: 'text', max: 'integer' },
  row: { id: 'text' },
  sql: `UPDATE ichido.webhook_deliveries SET ${AGAIN} WHERE state = 'dead' AND id IN (
      SELECT id FROM ichido.webhook_deliveries WHERE webhook_id = $webhook_id AND state = 'dead' ORDER BY id LIMIT $max)
    RETURNING id`,
})

/** Counts up to a maximum of each state that has not ended well. */
const countStates = statement('count_deliveries', {
  params: { max: 'integer' },
  row: { pending: 'integer', dead: 'integer' },
  sql: `SELECT CAST(coalesce(sum(s.pending), 0) AS bigint) AS pending, CAST(coalesce(sum(s.dead), 0) AS bigint) AS dead FROM (
    SELECT (SELECT count(*) FROM (SELECT 1 FROM ichido.webhook_deliveries d
        WHERE d.webhook_id = w.id AND d.state = 'pending' LIMIT $max) p) AS pending,
      (SELECT count(*) FROM (SELECT 1 FROM ichido.webhook_deliveries d
        WHERE d.webhook_id = w.id AND d.state = 'dead' LIMIT $max) p) AS dead
    FROM ichido.webhooks w) s`,
})

export const removeEndedDeliveries = statement('remove_deliveries', {
  params: { ...TERM, state: { oneOf: DELIVERY_STATES }, max: 'integer', age_ms: 'integer' },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT d.id FROM l CROSS JOIN ichido.webhook_deliveries d
      WHERE d.state = $state AND d.ended_at IS NOT NULL AND d.ended_at <= (SELECT now_ms()) - CAST($age_ms AS bigint)
      ORDER BY d.ended_at LIMIT $max FOR UPDATE OF d SKIP LOCKED)
    DELETE FROM ichido.webhook_deliveries WHERE id IN (SELECT id FROM c) RETURNING id`,
  sqlite: `DELETE FROM ichido.webhook_deliveries WHERE ${LED_SQLITE} AND id IN (
      SELECT id FROM ichido.webhook_deliveries WHERE state = $state AND ended_at IS NOT NULL
        AND ended_at <= now_ms() - $age_ms ORDER BY ended_at LIMIT $max) RETURNING id`,
})

/** A delivery that is to be sent now. */
export interface DueDelivery {
  deliveryId: string
  webhook: Webhook
  payload: string
  attempts: number
  failures: number
  nextAtMs: number
}

/** The oldest due deliveries of each webhook, up to a maximum for each, and the store's time. */
export function findDue(maxOfEach: number): Command<{ due: DueDelivery[]; nowMs: number }> {
  return command('find_due_deliveries', function* work() {
    const rows = yield* query(readSending, {})
    const webhooks = new Map(rows.map((row) => [row.id, toWebhook(row)]))
    const found = yield* each(
      readDue,
      rows.map(({ id }) => ({ webhook_id: id, max: maxOfEach })),
    )
    const due = found.flatMap(({ id, webhook_id, payload, attempts, failures, next_at }) => {
      const webhook = webhooks.get(webhook_id)
      return webhook === undefined ? [] : [{ deliveryId: id, webhook, payload, attempts, failures, nextAtMs: next_at }]
    })
    due.sort((a, b) => a.nextAtMs - b.nextAtMs)
    return { due, nowMs: rows[0]?.now ?? 0 }
  })
}

export interface Try {
  deliveryId: string
  webhookId: string
  /** As they were before the try. */
  attempts: number
  failures: number
  outcome: 'delivered' | 'failed' | 'gone'
  /** The wait before the next try; null: there is none. */
  waitMs: number | null
  status: number | null
  error: string | null
}

/** Records one try under the leader's fence. False: the term is over, or another try was recorded. */
export function recordDelivery(term: Term, item: Try): Command<boolean> {
  return command('record_delivery', function* work(): Work<boolean> {
    const { deliveryId: id, webhookId, attempts, outcome, status, error } = item
    if ((yield* one(holdTerm, term)) === undefined) return false
    // The webhook comes first, as in the deletion of a webhook.
    if (outcome === 'gone') {
      yield* query(disableWebhook, { id: webhookId, reason: 'The receiver answered 410 Gone' })
    }
    const isDone = outcome === 'delivered'
    const waitMs = isDone ? null : item.waitMs
    const state: DeliveryState = isDone ? 'delivered' : waitMs === null ? 'dead' : 'pending'
    const failures = isDone ? item.failures : item.failures + 1
    return (yield* one(recordTry, { id, attempts, state, failures, wait_ms: waitMs, status, error })) !== undefined
  })
}

export interface Delivery {
  deliveryId: string
  webhookId: string
  type: DeliveryShape['type']
  subjectId: string
  state: DeliveryState
  attempts: number
  nextAtMs: number | null
  lastStatus: number | null
  lastError: string | null
  createdAtMs: number
  endedAtMs: number | null
}

/** Adds a message without news, to test the receiver. Null: there is no such webhook. @param test a new id, and the time. */
export function addTest(webhookId: string, test: { id: string; atMs: number }): Command<Delivery | null> {
  return command('add_test_delivery', function* work(): Work<Delivery | null> {
    const { id, atMs } = test
    if ((yield* one(lockWebhook, { id: webhookId })) === undefined) return null
    const payload = message('webhook.test', atMs, { webhook_id: webhookId })
    const row = toRow(webhookId, 'webhook.test', { id, n: 0, atMs }, payload)
    yield* insert([row])
    const found = yield* one(readDelivery, { id: row.id, webhook_id: webhookId })
    return found === undefined ? null : toDelivery(found)
  })
}

/** Newest first. */
export function listDeliveries(
  webhookId: string,
  state: DeliveryState | null,
  limit: number,
  after: string | null,
): Command<Listed<Delivery>> {
  return command('list_deliveries', function* work(): Work<Listed<Delivery>> {
    const params: SqlValue[] = [webhookId, after ?? LAST_ID]
    const where = ['webhook_id = $1', 'id < $2']
    if (state !== null) where.push(`state = $${params.push(state)}`)
    const text = `SELECT ${DELIVERY} FROM ichido.webhook_deliveries WHERE ${where.join(' AND ')}
      ORDER BY id DESC LIMIT ${limit + 1}`
    const found = (yield* select(DELIVERY_ROW, text, params)).map(toDelivery)
    return pageOf(found, limit, ({ deliveryId }) => deliveryId)
  })
}

/** Sends a delivery again, with a fresh budget of tries and the same id. Null: there is none. */
export function redriveDelivery(webhookId: string, deliveryId: string, by: By): Command<Delivery | null> {
  return command('redrive_delivery', function* work(again): Work<Delivery | null> {
    const name = { id: deliveryId, webhook_id: webhookId }
    const before = yield* one(readDelivery, name)
    if (before === undefined) return null
    if (yield* isRecorded(again, by)) return toDelivery(before)
    const after = yield* one(redriveOne, name)
    if (after === undefined) return null
    yield* record(by, 'webhook.redrive', webhookId, { state: before.state }, { delivery_id: deliveryId })
    return toDelivery(after)
  })
}

/** The same for dead deliveries of a webhook, up to a maximum. Returns their number. */
export function redriveDeliveries(webhookId: string, max: number, by: By): Command<number> {
  return command('redrive_deliveries', function* work(): Work<number> {
    const redriven = (yield* query(redriveDead, { webhook_id: webhookId, max })).length
    if (redriven > 0) yield* record(by, 'webhook.redrive', webhookId, null, { redriven })
    return redriven
  })
}

/** Counts of each webhook end at a maximum, so that a long backlog is never read. */
const COUNTED_MAX = 1_000

export function countDeliveries(): Command<{ pending: number; dead: number }> {
  return command('count_deliveries', function* work() {
    const row = yield* one(countStates, { max: COUNTED_MAX })
    return { pending: row?.pending ?? 0, dead: row?.dead ?? 0 }
  })
}

function toDelivery(row: RowOf<typeof readDelivery>): Delivery {
  return {
    deliveryId: row.id,
    webhookId: row.webhook_id,
    type: row.type,
    subjectId: row.subject_id,
    state: row.state,
    attempts: row.attempts,
    nextAtMs: row.next_at,
    lastStatus: row.last_status,
    lastError: row.last_error,
    createdAtMs: row.created_at,
    endedAtMs: row.ended_at,
  }
}
