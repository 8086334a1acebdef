import { randomUUID } from 'node:crypto'
import { platformTimers, type World } from '@ichido/sdk/world'

/** What the plugin takes from outside of itself: a clock for records, one for waiting, timers, ids, jitter. */
export type IdempotencyWorld = Pick<World, 'now' | 'monotonic' | 'after' | 'random' | 'uuid'>

export const platformWorld: IdempotencyWorld = {
  ...platformTimers,
  now: () => Date.now(),
  monotonic: () => performance.now(),
  uuid: () => randomUUID(),
}
