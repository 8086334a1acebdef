import {
  type CallbackSecretShape,
  type CallbackShape,
  type DeliveryShape,
  type DeliveryState,
  IchidoError,
  type Page,
  type RedrivenDeliveries,
} from '@ichido/sdk/protocol'
import { type Caller, mayChange, mayRead } from '../../core/limits/roles.ts'
import { CALLBACKS } from '../../core/webhooks/webhook.ts'
import { changeCallbackSecret, keepCallbackSecret, type Secret } from '../../store/webhooks/callback-secrets.ts'
import { type Callback, findCallback, listDeliveries, redriveDelivery } from '../../store/webhooks/deliveries.ts'
import { isoOrNull, notFound, renderPage, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { redriveAllDead, renderDelivery } from './deliveries.ts'
import { newSecret, SECRET_OVERLAP_MS } from './secrets.ts'

/** Callbacks of single jobs. */
export interface CallbackService {
  /** The deliveries of all callbacks, newest first. */
  list(state: DeliveryState | null, limit: number, after: string | null): Promise<Page<DeliveryShape>>
  /** Sends the latest message about a job again. */
  redrive(caller: Caller, jobId: string): Promise<DeliveryShape>
  /** All dead deliveries of callbacks. */
  redriveDead(caller: Caller): Promise<RedrivenDeliveries>
  /** The secret for callbacks of a user's jobs. It is made when it is first needed. */
  secret(caller: Caller, userId: string): Promise<CallbackSecretShape>
  rotate(caller: Caller, userId: string): Promise<CallbackSecretShape>
}

export function createCallbackService({ world, store, bus }: Deps): CallbackService {
  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  return {
    async list(state, limit, after) {
      return renderPage(await store.read(listDeliveries(CALLBACKS, state, limit, after)), renderDelivery)
    },

    async redrive(caller, jobId) {
      requireId('job', jobId)
      const callback = await store.read(findCallback(jobId))
      if (callback === null || !mayRead(caller, callback.userId)) throw notFound('job with a callback', jobId)
      if (!mayChange(caller, callback.userId)) throw new IchidoError('FORBIDDEN')
      const { latest } = callback
      const redriven = latest && (await store.write(redriveDelivery(CALLBACKS, latest.deliveryId, by(caller))))
      if (redriven === null) throw notFound('message about the end of job', jobId)
      bus.wake(['webhooks'])
      return renderDelivery(redriven)
    },

    async redriveDead(caller) {
      const redriven = await redriveAllDead(store, CALLBACKS, () => by(caller))
      bus.wake(['webhooks'])
      return { redriven }
    },

    async secret(caller, userId) {
      requireOwn(caller, userId)
      return renderSecret(userId, await store.write(keepCallbackSecret(userId, newSecret(world))))
    },

    async rotate(caller, userId) {
      requireOwn(caller, userId)
      const change = changeCallbackSecret(userId, newSecret(world), SECRET_OVERLAP_MS, by(caller))
      return renderSecret(userId, await store.write(change))
    },
  }
}

function requireOwn(caller: Caller, userId: string): void {
  if (!mayChange(caller, userId)) throw new IchidoError('FORBIDDEN')
}

export function renderCallback({ url, latest }: Callback): CallbackShape {
  return { url, delivery: latest && renderDelivery(latest) }
}

function renderSecret(userId: string, { secret, oldSecret }: Secret): CallbackSecretShape {
  return { user_id: userId, secret, old_secret_until: isoOrNull(oldSecret?.untilMs ?? null) }
}
