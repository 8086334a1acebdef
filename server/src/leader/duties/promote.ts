import type { Bus } from '../../bus/port.ts'
import type { FairTags } from '../../services/leasing/fair-tags.ts'
import type { Settings } from '../../services/system/settings.ts'
import { promoteDue } from '../../store/leasing/promote-runs.ts'
import type { Store } from '../../store/port.ts'

interface PromoteOptions {
  store: Store
  bus: Bus
  fairTags: Pick<FairTags, 'tagsFor'>
  settings: Settings
}

/** Moves delayed runs into their queues when they are due. Any node may do it, and several at once do no harm. */
export function createPromote({ store, bus, fairTags, settings }: PromoteOptions): () => Promise<number | null> {
  return async () => {
    const batchMax = settings.get('promote_batch_max')
    const { queues, count, nextInMs } = await store.write(promoteDue(batchMax, fairTags.tagsFor))
    bus.wake(queues.map((queue) => `queue:${queue}` as const))
    return count === batchMax ? 0 : nextInMs
  }
}
