import type { DeliveryShape, WebhookEvent } from '@ichido/sdk/protocol'
import { FIRST_ID } from '../../core/run/job.ts'
import { CALLBACKS, deliveryId, END_EVENTS, hostOf, type Subject, wantsJob } from '../../core/webhooks/webhook.ts'
import { readHorizon } from '../events/all-events.sql.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, type ParamsOf, query, type RowOf, type Work } from '../statement.ts'
import type { Term } from '../system/term.ts'
import { readAnyCallback } from './callbacks.sql.ts'
import * as sql from './ends.sql.ts'
import { putPlace, toWebhook, type Webhook } from './webhooks.ts'

/** The id of the leader's own place, the watermark. */
const WATERMARK = FIRST_ID
/** Transactions of one read. SQLite looks at each of their events. */
const WIDTH_MAX = 20_000
/** The deliveries of one transaction, beside those of its last end: the renewal of the term waits for it. */
export const DELIVERIES_MAX = 2_000
/** Nobody listens, and the watermark rests. It follows after so many transactions, so that a first callback finds it near. */
const REST_MAX = 1_000
/** A part of an error's text that fits into a message. */
const ERROR_CHARS_MAX = 1_000

/** A place among the ends of all jobs, as in the list of all events (hazard 13). */
interface EndPlace {
  tx: number
  job_id: string
  run_no: number
}

const before = (tx: number): EndPlace => ({ tx, job_id: FIRST_ID, run_no: 0 })

interface Listener extends Webhook {
  /** The webhook gets the ends of this transaction and later ones. */
  since: number
}

interface Derived {
  deliveries: number
  /** False: there is more to read at once. */
  caughtUp: boolean
}

/** The watermark begins here, unless it has begun before. From then on no end is missed. */
export function beginEnds(): Command<void> {
  return command('begin_ends', function* work(): Work<void> {
    const { settled } = yield* exactlyOne(readHorizon, {})
    yield* query(sql.addPlace, { id: WATERMARK, ...before(settled) })
  })
}

/**
 * Adds the deliveries of the ends after the watermark, for webhooks and callbacks, and moves the watermark, in one
 * transaction under the leader's fence: each committed end gets its deliveries once. Null: the term is over.
 */
export function deriveDeliveries(term: Term, max: number): Command<Derived | null> {
  return command('derive_deliveries', function* work(): Work<Derived | null> {
    if ((yield* one(sql.holdTerm, term)) === undefined) return null
    // The horizon is read first. A job that ended before it, after a webhook was made, then finds the webhook below.
    const { settled, ahead } = yield* exactlyOne(readHorizon, {})
    const listeners = yield* listening()
    const heard = { listeners, callbacks: yield* hasCallbacks() }
    if (isUnheard(heard)) return yield* rest({ settled, ahead })
    const from = yield* startOf(heard, { settled, ahead })
    const high = Math.min(settled, from.tx + WIDTH_MAX)
    const ends = yield* query(sql.readEnds, { ...from, high, max })
    const { deliveries, taken } = yield* add(listeners, ends, DELIVERIES_MAX)
    const last = taken < ends.length || taken === max ? ends[taken - 1] : undefined
    const next = last === undefined ? before(high) : { tx: last.tx, job_id: last.job_id, run_no: last.run_no }
    const caughtUp = last === undefined && high === settled
    // Every transaction moves the horizon. Without an end it is not worth a write.
    if (ends.length > 0 || !caughtUp || high - from.tx > WIDTH_MAX / 2)
      yield* query(putPlace, { id: WATERMARK, ...next })
    return { deliveries, caughtUp }
  })
}

/**
 * Adds the deliveries of ended jobs that are about to be removed with their ends. The leader may not have come to them.
 * `jobIds` is a JSON array.
 */
export function* deriveBeforeRemoval(jobIds: string): Work<void> {
  const listeners = yield* listening()
  const heard = { listeners, callbacks: yield* hasCallbacks() }
  if (isUnheard(heard)) return
  const from = yield* startOf(heard, yield* exactlyOne(readHorizon, {}))
  yield* add(listeners, yield* query(sql.readEndsOf, { ...from, job_ids: jobIds }), Infinity)
}

function* listening(): Work<Listener[]> {
  return (yield* query(sql.readListening, {})).map((row) => ({ ...toWebhook(row), since: row.since ?? 0 }))
}

function* hasCallbacks(): Work<boolean> {
  return (yield* one(readAnyCallback, {})) !== undefined
}

/** Who wants to know the ends of jobs. */
interface Heard {
  listeners: readonly Listener[]
  /** Some jobs have callbacks. */
  callbacks: boolean
}

const isUnheard = ({ listeners, callbacks }: Heard) => listeners.length === 0 && !callbacks

type Horizon = Pick<RowOf<typeof readHorizon>, 'settled' | 'ahead'>

/**
 * Moves the watermark to the horizon, which was read before the callbacks: no job that ended before it has one. A webhook
 * has its own place.
 */
function* rest({ settled, ahead }: Horizon): Work<Derived> {
  const mark = yield* one(sql.readPlace, { id: WATERMARK })
  const isNear = mark !== undefined && mark.tx <= ahead && settled - mark.tx <= REST_MAX
  if (!isNear) yield* query(putPlace, { id: WATERMARK, ...before(settled) })
  return { deliveries: 0, caughtUp: true }
}

/**
 * The watermark; or, if it has rested since, the place of the first webhook that was made after it. Callbacks have no
 * places: they need everything after the watermark.
 */
function* startOf({ listeners, callbacks }: Heard, { settled, ahead }: Horizon) {
  const first = callbacks ? 0 : Math.min(...listeners.map(({ since }) => since))
  const mark = yield* one(sql.readPlace, { id: WATERMARK })
  if (mark === undefined) return before(first === 0 ? settled : first)
  // The watermark belongs to another store.
  if (mark.tx > ahead) return before(settled)
  return mark.tx >= first ? mark : before(first)
}

type EndRow = RowOf<typeof sql.readEnds>

/** Adds the deliveries of the first ends, until there are `max`. `taken` is the number of these ends. */
function* add(listeners: readonly Listener[], ends: readonly EndRow[], max: number) {
  let [taken, found] = [0, 0]
  const rows = ends.flatMap((end) => {
    if (found >= max) return []
    taken++
    if (!end.final || !isEnd(end.state)) return []
    const { tx, job_id, run_no } = end
    const type = END_EVENTS[end.state]
    const facts = { queue: end.queue, kind: end.kind, labels: end.labels ?? {} }
    const wanting = listeners.filter((webhook) => tx >= webhook.since && wantsJob(webhook, type, facts))
    const { callback_url: url } = end
    if (wanting.length === 0 && url === null) return []
    found += wanting.length + (url === null ? 0 : 1)
    const payload = message(type, end.finished_at, describe(end))
    const about = { id: job_id, n: run_no, atMs: end.finished_at }
    const rows = wanting.map(({ webhookId }) => toRow(webhookId, type, about, payload))
    if (url === null) return rows
    const callback = { url, host: hostOf(new URL(url)), user_id: end.user_id }
    return [...rows, { ...toRow(CALLBACKS, type, about, payload), ...callback }]
  })
  return { deliveries: (yield* insert(rows)).length, taken }
}

function isEnd(state: string): state is keyof typeof END_EVENTS {
  return Object.hasOwn(END_EVENTS, state)
}

function describe(end: EndRow) {
  const { job_id, run_id, kind, queue, user_id, state, attempt, retry_count, labels, error } = end
  return {
    ...{ job_id, run_id, kind, queue, user_id, state, attempt, retry_count },
    labels: labels ?? {},
    error: error === null ? null : { code: error.code, message: error.message.slice(0, ERROR_CHARS_MAX) },
    created_at: new Date(end.created_at).toISOString(),
    finished_at: new Date(end.finished_at).toISOString(),
  }
}

/** An alert that was opened or closed in this transaction. */
interface AlertTurn {
  alertId: string
  rule: string
  subject: string
  message: string
  atMs: number
}

/** Adds the deliveries of alerts, in the transaction that opens or closes them. */
export function* addAlertDeliveries(opened: readonly AlertTurn[], closed: readonly AlertTurn[]): Work<void> {
  if (opened.length + closed.length === 0) return
  const listeners = yield* listening()
  const rows = (turns: readonly AlertTurn[], type: WebhookEvent, n: number) =>
    turns.flatMap(({ alertId, rule, subject, message: text, atMs }) => {
      const payload = message(type, atMs, { alert_id: alertId, rule, subject, message: text })
      const wanting = listeners.filter(({ events }) => events.includes(type))
      return wanting.map(({ webhookId }) => toRow(webhookId, type, { id: alertId, n, atMs }, payload))
    })
  yield* insert([...rows(opened, 'alert.opened', 0), ...rows(closed, 'alert.closed', 1)])
}

type DeliveryType = DeliveryShape['type']
type DeliveryRow = ParamsOf<typeof sql.insertDeliveries>

export function toRow(webhookId: string, type: DeliveryType, subject: Subject, payload: string): DeliveryRow {
  const id = deliveryId(webhookId, subject)
  const about = { subject_id: subject.id, subject_n: subject.n }
  return { id, webhook_id: webhookId, type, ...about, payload, url: null, host: null, user_id: null }
}

export function message(type: string, atMs: number, data: object): string {
  return JSON.stringify({ type, timestamp: new Date(atMs).toISOString(), data })
}

export function insert(rows: readonly DeliveryRow[]): Work<{ id: string }[]> {
  return each(sql.insertDeliveries, rows)
}
