/**
 * Wake-ups, nothing more: "something changed here, look at the store". A wake-up may be lost or come twice, so whoever
 * waits for one also looks by itself now and then.
 */
export interface Bus {
  /** Tells every node. Called after the commit, never inside a transaction. */
  wake(topics: readonly Topic[]): void
  /** The answer ends the subscription. */
  subscribe(topic: Topic, callback: () => void): () => void
  close(): Promise<void>
}

/** A queue that has work, a job that moved or whose run wrote something, leadership to be had, or settings that changed. */
export type Topic = `queue:${string}` | `job:${string}` | `logs:${string}` | 'leadership' | 'settings'
