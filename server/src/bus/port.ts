import type { EventName, StoredEvent } from '../core/events/event.ts'

/**
 * Carries wake-ups: "something changed here, look at the store". A wake-up may be lost or arrive twice, so every
 * subscriber also polls.
 */
export interface Bus {
  /**
   * Wakes the subscribers on all nodes. It is called after the commit, never inside a transaction. `news` reaches only
   * this process.
   */
  wake(topics: readonly Topic[], news?: News): void
  /** Returns a function that ends the subscription. */
  subscribe(topic: Topic, callback: (news?: News) => void): () => void
  close(): Promise<void>
}

/** Facts about the new events of a job. */
export interface News {
  /** The cursor of the last event. */
  cursor: number
  /** Events that this process stored, so that readers need not ask the store. */
  events?: readonly StoredEvent[]
}

/**
 * Carries events to Redis, where they are read without asking the store. Events that it does not carry are still read
 * from the store.
 */
export interface Relay {
  /**
   * Called after the commit with all events of a transaction, sorted by cursor within each job. It does not throw or
   * wait. `tx` is null if the transaction is unknown.
   */
  stored(tx: number | null, events: readonly StoredEvent[]): void
  /** The transactions, sorted, from `from` on and before `to` whose events it has relayed completely. */
  taken(from: number, to: number): number[]
  /** Forgets the relayed transactions, because Redis may have lost their events, or the store is another. */
  forget(): void
  /** Checks that Redis answers, accepts writes, and still has the key of `remember()`. */
  look(): Promise<'ready' | 'emptied' | 'full' | 'away'>
  /** True if Redis drops keys when its memory is full. Then a missing key does not mean that all keys are lost. */
  evicts(): Promise<boolean>
  /** Writes the key by which `look()` notices that Redis lost everything. */
  remember(): Promise<void>
  /** The names that were not relayed yet. */
  missing<Name extends EventName>(names: readonly Name[]): Promise<Name[]>
  /** Relays events that may be old. `nowMs` is the store's clock. */
  sweep(events: readonly StoredEvent[], nowMs: number): Promise<void>
}

/**
 * A queue has work; a job moved, or its run wrote events or logs; a worker must stop a run; the leadership is vacant;
 * settings changed; or there are triggers to process.
 */
export type Topic =
  | `queue:${string}`
  | `job:${string}`
  | `logs:${string}`
  | `worker:${string}`
  | 'leadership'
  | 'settings'
  | 'triggers'
  /** A delivery may be due. */
  | 'webhooks'
