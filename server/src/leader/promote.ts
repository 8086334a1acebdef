import type { Bus } from '../bus/port.ts'
import type { FairTags } from '../services/fair-tags.ts'
import { promoteDue } from '../store/commands/promote-runs.ts'
import type { Store } from '../store/port.ts'

const BATCH_MAX = 1_000

export interface PromoteOptions {
  store: Store
  bus: Bus
  fairTags: FairTags
}

/** Lets delayed runs into the queue when their time has come. Any node may do it, also several at once. */
export function createPromote({ store, bus, fairTags }: PromoteOptions): () => Promise<number | null> {
  return async () => {
    const { queues, count, nextInMs } = await store.write(
      promoteDue(BATCH_MAX, ({ queue, userId, priority }) => fairTags.tagFor(queue, userId, priority)),
    )
    bus.wake(queues.map((queue) => `queue:${queue}` as const))
    return count === BATCH_MAX ? 0 : nextInMs
  }
}
