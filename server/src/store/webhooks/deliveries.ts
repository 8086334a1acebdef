import type { DeliveryShape, DeliveryState } from '@ichido/sdk/protocol'
import { LAST_ID } from '../../core/run/job.ts'
import { CALLBACKS, DELIVERY_STATES, WEBHOOK_EVENTS } from '../../core/webhooks/webhook.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { each, now, one, query, type RowOf, type SqlValue, select, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import { type Secret, toSecret } from './callback-secrets.ts'
import { readCallback, readPendingHosts } from './callbacks.sql.ts'
import { insert, message, toRow } from './derive-deliveries.ts'
import { holdTerm } from './ends.sql.ts'
import { lockWebhook, toWebhook, WEBHOOK, WEBHOOK_ROW } from './webhooks.ts'

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
  row: WEBHOOK_ROW,
  sql: `SELECT ${WEBHOOK} FROM ichido.webhooks w WHERE w.disabled_at IS NULL ORDER BY w.id`,
})

const DUE_ROW = {
  id: 'text',
  webhook_id: 'text',
  payload: 'text',
  attempts: 'integer',
  failures: 'integer',
  next_at: 'integer',
} as const
const DUE = Object.keys(DUE_ROW)
  .map((column) => `d.${column}`)
  .join(', ')

/** An earlier message about the same subject goes first: the messages of a job arrive in their order. */
const due = (columns: string, whose: string, max: string) => `SELECT ${columns} FROM ichido.webhook_deliveries d
      WHERE ${whose} AND d.next_at IS NOT NULL AND d.next_at <= (SELECT now_ms())
        AND (SELECT count(*) FROM ichido.webhook_deliveries p WHERE p.webhook_id = d.webhook_id AND p.subject_id = d.subject_id
          AND p.subject_n < d.subject_n AND p.state = 'pending') = 0
      ORDER BY d.next_at, d.id LIMIT ${max}`

const readDue = statement('read_due_deliveries', {
  params: { webhook_id: 'text', max: 'integer' },
  row: DUE_ROW,
  postgres: `SELECT f.* FROM unnest($webhook_id::uuid[], $max::integer[]) AS t(webhook_id, max)
    CROSS JOIN LATERAL (${due(DUE, 'd.webhook_id = t.webhook_id', 't.max')}) f`,
  sqlite: due(DUE, 'd.webhook_id = $webhook_id', '$max'),
})

/** A user without a secret gets one before the first message. */
const SIGNER = ['secret', 'old_secret', 'old_secret_until']
  .map((column) => `(SELECT s.${column} FROM ichido.callback_secrets s WHERE s.user_id = d.user_id) AS ${column}`)
  .join(', ')
const DUE_CALLBACK = `${DUE}, d.url, d.user_id, ${SIGNER}`

/** The same for callbacks of one host. */
const readDueCallbacks = statement('read_due_callbacks', {
  params: { host: 'text', max: 'integer' },
  row: {
    ...DUE_ROW,
    url: 'text',
    user_id: 'text',
    secret: 'text?',
    old_secret: 'text?',
    old_secret_until: 'integer?',
  },
  postgres: `SELECT f.* FROM unnest($host::text[], $max::integer[]) AS t(host, max)
    CROSS JOIN LATERAL (${due(DUE_CALLBACK, 'd.host = t.host', 't.max')}) f`,
  sqlite: due(DUE_CALLBACK, 'd.host = $host', '$max'),
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

/** `IS TRUE` keeps the planner from an index that begins with the webhook. */
const redriveDead = statement('redrive_dead_deliveries', {
  params: { webhook_id: 'text', max: 'integer' },
  row: { id: 'text' },
  sql: `UPDATE ichido.webhook_deliveries SET ${AGAIN} WHERE (state = 'dead') IS TRUE AND id IN (
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
    FROM (SELECT id FROM ichido.webhooks UNION ALL SELECT '${CALLBACKS}') w) s`,
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
  /** Null: it goes to the callback of a job. */
  webhookId: string | null
  /** The maker of the webhook, or the owner of the job. */
  userId: string
  url: string
  /** Those that are valid now. Empty: the owner of the job has none yet. */
  secrets: string[]
  payload: string
  attempts: number
  failures: number
  nextAtMs: number
}

/** Hosts of callbacks that one look reads. The next look goes on behind them. */
const HOSTS_MAX = 1_000

interface Due {
  /** The oldest first. */
  due: DueDelivery[]
  nowMs: number
  /** Where the next look goes on among the hosts of callbacks. */
  nextHost: string
}

/** The oldest due deliveries of each webhook, and of each host of callbacks, up to a maximum for each. */
export function findDue(maxOfEach: number, afterHost = ''): Command<Due> {
  return command('find_due_deliveries', function* work(): Work<Due> {
    const nowMs = yield* now()
    const rows = yield* query(readSending, {})
    const webhooks = new Map(rows.map((row) => [row.id, toWebhook(row)]))
    const ofWebhooks = yield* each(
      readDue,
      rows.map(({ id }) => ({ webhook_id: id, max: maxOfEach })),
    )
    const due = ofWebhooks.flatMap((row): DueDelivery[] => {
      const webhook = webhooks.get(row.webhook_id)
      if (webhook === undefined) return []
      const { webhookId, userId, url } = webhook
      return [{ ...toDue(row), webhookId, userId, url, secrets: validSecrets(webhook, nowMs) }]
    })
    const hosts = yield* query(readPendingHosts, { after: afterHost, max: HOSTS_MAX })
    const ofCallbacks = yield* each(
      readDueCallbacks,
      hosts.map(({ host }) => ({ host, max: maxOfEach })),
    )
    for (const row of ofCallbacks) {
      const secrets = row.secret === null ? [] : validSecrets(toSecret({ ...row, secret: row.secret }), nowMs)
      due.push({ ...toDue(row), webhookId: null, userId: row.user_id, url: row.url, secrets })
    }
    due.sort((a, b) => a.nextAtMs - b.nextAtMs)
    return { due, nowMs, nextHost: hosts.length < HOSTS_MAX ? '' : (hosts.at(-1)?.host ?? '') }
  })
}

function toDue({ id, payload, attempts, failures, next_at }: RowOf<typeof readDue>) {
  return { deliveryId: id, payload, attempts, failures, nextAtMs: next_at }
}

function validSecrets({ secret, oldSecret }: Secret, nowMs: number): string[] {
  return oldSecret !== null && oldSecret.untilMs > nowMs ? [secret, oldSecret.secret] : [secret]
}

export interface Try {
  deliveryId: string
  /** Null: it went to the callback of a job. */
  webhookId: string | null
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
    if (outcome === 'gone' && webhookId !== null) {
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
  /** Null: it goes to the callback of a job. */
  webhookId: string | null
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

const readLatest = statement('read_latest_delivery', {
  params: { webhook_id: 'text', subject_id: 'text' },
  row: DELIVERY_ROW,
  sql: `SELECT ${DELIVERY} FROM ichido.webhook_deliveries WHERE webhook_id = $webhook_id AND subject_id = $subject_id
    ORDER BY subject_n DESC LIMIT 1`,
})

/** The callback of a job. */
export interface Callback {
  url: string
  /** The owner of the job. */
  userId: string
  /** About the latest end of the job; null: there is none, or it was removed. */
  latest: Delivery | null
}

/** Null: the job has none. */
export function* readCallbackOf(jobId: string): Work<Callback | null> {
  const found = yield* one(readCallback, { job_id: jobId })
  if (found === undefined) return null
  const latest = yield* one(readLatest, { webhook_id: CALLBACKS, subject_id: jobId })
  return { url: found.url, userId: found.user_id, latest: latest === undefined ? null : toDelivery(latest) }
}

export function findCallback(jobId: string): Command<Callback | null> {
  return command('find_callback', () => readCallbackOf(jobId))
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
    const [action, subject] = redriveOf(webhookId, before.subject_id)
    yield* record(by, action, subject, { state: before.state }, { delivery_id: deliveryId })
    return toDelivery(after)
  })
}

/** The same for dead deliveries of a webhook, up to a maximum. Returns their number. */
export function redriveDeliveries(webhookId: string, max: number, by: By): Command<number> {
  return command('redrive_deliveries', function* work(): Work<number> {
    const redriven = (yield* query(redriveDead, { webhook_id: webhookId, max })).length
    const [action, subject] = redriveOf(webhookId, '*')
    if (redriven > 0) yield* record(by, action, subject, null, { redriven })
    return redriven
  })
}

/** The action and subject of the audit: a webhook, or the job of a callback. */
function redriveOf(webhookId: string, jobId: string): [action: string, subject: string] {
  return webhookId === CALLBACKS ? ['callback.redrive', jobId] : ['webhook.redrive', webhookId]
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
    webhookId: row.webhook_id === CALLBACKS ? null : row.webhook_id,
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
