import { removeExpiredKeys } from '../store/commands/keys.ts'
import type { Store } from '../store/port.ts'

const BATCH_MAX = 1_000

/** Removes keys whose time is up and whose job has ended, a bounded batch at a time. */
export function createRetain({ store }: { store: Store }): () => Promise<number | null> {
  return async () => ((await store.write(removeExpiredKeys(BATCH_MAX))) === BATCH_MAX ? 0 : null)
}
