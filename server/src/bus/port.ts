import type { EventName, StoredEvent } from '../core/events/event.ts'

/**
 * Wake-ups, nothing more: "something changed here, look at the store". A wake-up may be lost or come twice, so whoever
 * waits for one also looks by itself now and then.
 */
export interface Bus {
  /** Tells every node. Called after the commit, never inside a transaction. The news are told in this process alone. */
  wake(topics: readonly Topic[], news?: News): void
  /** The answer ends the subscription. */
  subscribe(topic: Topic, callback: (news?: News) => void): () => void
  close(): Promise<void>
}

/** What is known of a job whose events are new. */
export interface News {
  /** Of the last one. */
  cursor: number
  /** Those that this process itself has stored: nobody needs to ask the store for them. */
  events?: readonly StoredEvent[]
}

/** Carries events to where they are read without asking the store. What it does not carry is found there all the same. */
export interface Relay {
  /**
   * Told after the commit, of all events of a transaction, those of a job in the order of their cursors. It neither throws nor
   * keeps anybody waiting. Null: which transaction it was cannot be told.
   */
  stored(tx: number | null, events: readonly StoredEvent[]): void
  /** Those of the transactions from one on and before another, in their order, whose events it has all taken itself. */
  taken(from: number, to: number): number[]
  /** What was taken may be lost, or of another store: none of it is told any more. */
  forget(): void
  /** Whether what takes the events is there, takes any, and still has what it was told to remember. */
  look(): Promise<'ready' | 'emptied' | 'full' | 'away'>
  /** Whether it drops what it has when it is short of room: then something that is missing need not mean that all is. */
  evicts(): Promise<boolean>
  /** From now on it is noticed when everything is lost there. */
  remember(): Promise<void>
  /** Those that were not relayed yet. */
  missing<Name extends EventName>(names: readonly Name[]): Promise<Name[]>
  /** Relays what may be old by now. `nowMs` is the store's clock. */
  sweep(events: readonly StoredEvent[], nowMs: number): Promise<void>
}

/**
 * A queue that has work, a job that moved or whose run wrote something, a worker that is to stop something, leadership to be had,
 * settings that changed, or triggers that the leader can process.
 */
export type Topic =
  | `queue:${string}`
  | `job:${string}`
  | `logs:${string}`
  | `worker:${string}`
  | 'leadership'
  | 'settings'
  | 'triggers'
