import type { Bus } from '../bus/port.ts'
import { promoteDue } from '../store/commands/read-jobs.ts'
import type { Store } from '../store/port.ts'

const BATCH_MAX = 1_000

/** Lets delayed runs into the queue when their time has come. Any node may do it, also several at once. */
export function createPromote({ store, bus }: { store: Store; bus: Bus }): () => Promise<number | null> {
  return async () => {
    const { queues, count, nextInMs } = await store.write(promoteDue(BATCH_MAX))
    bus.wake(queues.map((queue) => `queue:${queue}` as const))
    return count === BATCH_MAX ? 0 : nextInMs
  }
}
