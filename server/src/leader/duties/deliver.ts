import { sleep, unlessAborted } from '@ichido/sdk/world'
import { signedHeaders } from '../../core/schedule/hook-signature.ts'
import { hostOf, waitAfter } from '../../core/webhooks/webhook.ts'
import type { Courier } from '../../courier/port.ts'
import type { Deps } from '../../services/deps.ts'
import { setBounded } from '../../services/limits/maximum.ts'
import { findReceiver } from '../../services/webhooks/receiver.ts'
import { newSecret } from '../../services/webhooks/secrets.ts'
import { keepCallbackSecret } from '../../store/webhooks/callback-secrets.ts'
import { type DueDelivery, findDue, recordDelivery, type Try } from '../../store/webhooks/deliveries.ts'
import { deriveDeliveries } from '../../store/webhooks/derive-deliveries.ts'
import type { Leading } from '../election/elect.ts'

interface DeliverOptions extends Pick<Deps, 'world' | 'store' | 'bus' | 'meter' | 'settings'> {
  courier: Courier
  onTrouble(where: string, error: unknown): void
}

/** Messages on their way at a time, in all and to one host: a slow receiver must not delay the others. */
const SENDING_MAX = 16
const SENDING_TO_HOST_MAX = 4
/** Hosts that are remembered because they gave no answer the last time. Callbacks may lead to any number of hosts. */
const SILENT_MAX = 1_000
/** Messages on their way to hosts that gave no answer the last time, in all. Four silent hosts would take all places. */
const SENDING_TO_SILENT_MAX = 8
/** A receiver that has not answered by then counts as failed. */
const ANSWER_WITHIN_MS = 15_000
const NO_ANSWER = `No answer in ${ANSWER_WITHIN_MS / 1000} s`
const ERROR_CHARS_MAX = 500
const GONE = 410

/**
 * Turns ends of jobs into deliveries, and sends those that are due, for one term. A tick only starts messages; each is
 * recorded when it was answered. If this node dies before that, the next leader sends the message again, with the same
 * id.
 */
export function createDeliver(options: DeliverOptions, leading: Leading): () => Promise<number | null> {
  const { world, store, bus, meter, settings, courier, onTrouble } = options
  /** The host of each delivery that is on its way. */
  const sending = new Map<string, string>()
  /** Hosts that gave no answer the last time. */
  const silent = new Map<string, true>()
  /** Where the next look goes on among the hosts of callbacks. */
  let afterHost = ''

  function start(delivery: DueDelivery, host: string, nowMs: number): void {
    sending.set(delivery.deliveryId, host)
    void send(delivery, nowMs)
      .then(async (done) => {
        if (done.status === null) setBounded(silent, SILENT_MAX, host, true)
        else silent.delete(host)
        if (await store.write(recordDelivery(leading, done))) meter.delivered(done.outcome)
      })
      // When the term is over, or the node stops, the next leader sends the message.
      .catch((error: unknown) => leading.trusted() && onTrouble('deliver', error))
      .finally(() => {
        sending.delete(delivery.deliveryId)
        if (leading.trusted()) bus.wake(['webhooks'])
      })
  }

  async function send(delivery: DueDelivery, nowMs: number): Promise<Try> {
    const { deliveryId, webhookId, attempts, failures } = delivery
    const { status, error } = await answerOf(delivery, nowMs)
    const isDone = status !== null && status >= 200 && status < 300
    const outcome = isDone ? 'delivered' : status === GONE ? 'gone' : 'failed'
    // A webhook is disabled, and enabled again by a person. A callback has only this message.
    const isOver = outcome === 'gone' && webhookId === null
    const waitMs = isOver ? null : waitAfter(failures + 1, world.random())
    return { deliveryId, webhookId, attempts, failures, outcome, waitMs, status, error }
  }

  async function answerOf({ deliveryId, userId, url, secrets, payload }: DueDelivery, nowMs: number) {
    const timeout = new AbortController()
    const answered = new AbortController()
    void sleep(world, ANSWER_WITHIN_MS, answered.signal).then(() => timeout.abort())
    try {
      const allowPrivate = settings.get('webhooks_allow_private') === 1
      const receiver = await unlessAborted(findReceiver(courier, url, allowPrivate), timeout.signal)
      if ('problem' in receiver) return { status: null, error: `The url ${receiver.problem}` }
      const valid = secrets.length > 0 ? secrets : [await firstSecret(userId)]
      const signed = signedHeaders(valid, { id: deliveryId, atMs: nowMs, body: payload })
      const headers = { 'content-type': 'application/json', 'user-agent': 'Ichido', ...signed }
      const status = await courier.post({ ...receiver, headers, body: payload }, timeout.signal)
      return { status, error: status >= 200 && status < 300 ? null : refusal(status) }
    } catch (error) {
      if (timeout.signal.aborted) return { status: null, error: NO_ANSWER }
      return { status: null, error: (error instanceof Error ? error.message : String(error)).slice(0, ERROR_CHARS_MAX) }
    } finally {
      answered.abort()
    }
  }

  async function firstSecret(userId: string): Promise<string> {
    return (await store.write(keepCallbackSecret(userId, newSecret(world)))).secret
  }

  async function sendDue(): Promise<void> {
    if (sending.size >= SENDING_MAX) return
    const { due, nowMs, nextHost } = await store.read(findDue(SENDING_TO_HOST_MAX, afterHost))
    afterHost = nextHost
    const hosts = [...sending.values()]
    for (const delivery of due) {
      if (sending.size >= SENDING_MAX) break
      const host = hostOf(new URL(delivery.url))
      const isBusy = hosts.filter((one) => one === host).length >= SENDING_TO_HOST_MAX
      const isSilent = silent.has(host) && hosts.filter((one) => silent.has(one)).length >= SENDING_TO_SILENT_MAX
      if (isBusy || isSilent || sending.has(delivery.deliveryId)) continue
      hosts.push(host)
      start(delivery, host, nowMs)
    }
  }

  return async () => {
    const derived = await store.write(deriveDeliveries(leading, settings.get('webhooks_batch_max')))
    await sendDue()
    return derived?.caughtUp === false ? 0 : null
  }
}

function refusal(status: number): string {
  return status >= 300 && status < 400
    ? `The receiver answered ${status}; redirects are not followed`
    : `The receiver answered ${status}`
}
