import type { DeliveryShape } from '@ichido/sdk/protocol'
import type { Store } from '../../store/port.ts'
import { type Delivery, redriveDeliveries } from '../../store/webhooks/deliveries.ts'
import { iso, isoOrNull } from '../answers.ts'

type By = Parameters<typeof redriveDeliveries>[2]

/** Deliveries that one transaction redrives. */
const REDRIVEN_MAX = 5_000

/** Redrives all dead deliveries of a webhook, or of all callbacks, and returns their number. */
export async function redriveAllDead(store: Store, webhookId: string, by: () => By): Promise<number> {
  let redriven = 0
  for (let last = REDRIVEN_MAX; last === REDRIVEN_MAX; redriven += last) {
    last = await store.write(redriveDeliveries(webhookId, REDRIVEN_MAX, by()))
  }
  return redriven
}

export function renderDelivery(delivery: Delivery): DeliveryShape {
  const { type, state } = delivery
  return {
    delivery_id: delivery.deliveryId,
    webhook_id: delivery.webhookId,
    type,
    job_id: type.startsWith('job.') ? delivery.subjectId : null,
    state,
    attempts: delivery.attempts,
    next_at: isoOrNull(delivery.nextAtMs),
    last_status: delivery.lastStatus,
    last_error: delivery.lastError,
    created_at: iso(delivery.createdAtMs),
    ended_at: isoOrNull(delivery.endedAtMs),
  }
}
