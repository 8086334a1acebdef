import type { DeliveryShape, DeliveryState } from '@ichido/sdk/protocol'
import { words } from '../words.ts'

export const deliveryWords = words(
  { pending: 'Pending', delivered: 'Delivered', dead: 'Dead' },
  { pending: '待機中', delivered: '配信済み', dead: '配信不能' },
)

/** The colours of the states. */
const TONES = { pending: 'PENDING', delivered: 'SUCCEEDED', dead: 'FAILED' } as const satisfies Record<
  DeliveryState,
  string
>

export function DeliveryPill({ of: { state } }: { of: DeliveryShape }) {
  return (
    <span class="pill" data-state={TONES[state]}>
      {deliveryWords()[state]}
    </span>
  )
}
