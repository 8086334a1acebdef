import type { Accepted, Transport } from '../client/transport.ts'
import { DEFAULT_OUTBOX_KEY_TTL_HOURS, type SubmitRequest } from '../protocol/index.ts'
import type { ItemProgress, StoredItem } from './item.ts'

/** More than a person ever leaves behind; a faulty program would otherwise fill the disk. */
export const ITEMS_MAX = 10_000

/** The store of the items. When a call has resolved, its change survives the end of the page or the process. */
export interface OutboxStore {
  /** Resolves to the item under its key: this one, or an earlier one. */
  add(item: StoredItem): Promise<StoredItem>
  get(id: string): Promise<StoredItem | undefined>
  /** The items in the order in which they were added. */
  list(): Promise<StoredItem[]>
  /** Resolves to false if the item no longer exists; a removed item does not come back. */
  update(id: string, progress: ItemProgress): Promise<boolean>
  remove(id: string): Promise<boolean>
  close(): Promise<void>
}

/** A lock over all tabs or processes that share a store; it is free when its holder dies. */
export type OutboxLock = <T>(work: () => Promise<T>, signal: AbortSignal) => Promise<T>

/** The state of the network. */
export interface Network {
  /** False: nothing can be sent now. It is called before a flush, and after a try without an answer. */
  online(): boolean | Promise<boolean>
  /** True if `online()` asks the server itself, so that its answer is certain. */
  asks?: boolean
  /** Calls back when the network may be back; returns a function that cancels it. */
  onOnline(callback: () => void): () => void
}

/** The connection to other pages that show the same outbox. */
export interface Tabs {
  tell(change: unknown): void
  onTold(callback: (change: unknown) => void): () => void
  close(): void
}

/**
 * Delivers one item. If it throws, the error decides about a retry, by the same rule as in the client: an error with a
 * `status` is an answer; `NoAnswer` and the TypeError of `fetch` mean that no answer came. It may return the `Response` of
 * `fetch`: a response that is not ok counts as a failure.
 *
 * If the connection breaks after the item arrived, the item is sent again with the same key. The receiver must remember keys
 * for longer than a sender stays offline.
 */
export type Send<Body = unknown, Answer = unknown> = (
  delivery: { key: string; body: Body },
  signal: AbortSignal,
) => Promise<Answer>

/**
 * Makes the `send` of an outbox of job submissions. The outbox retries by itself, so the transport need not.
 *
 * @example
 * const send = sendJobs(httpTransport({ url: 'http://127.0.0.1:8001', retry: { tries: 1 } }))
 */
export function sendJobs(transport: Transport): Send<SubmitRequest, Accepted> {
  return ({ key, body }, signal) =>
    transport.submit({ key_ttl_hours: DEFAULT_OUTBOX_KEY_TTL_HOURS, ...body }, { key, signal })
}
