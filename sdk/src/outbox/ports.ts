/** An item in the store, without its momentary status. */
export interface StoredItem {
  id: string
  key: string
  /** JSON. */
  body: unknown
  savedAtMs: number
  attempts: number
  status: 'queued' | 'failed'
  /** An automatic flush does not send it before this time. */
  dueAtMs: number
  error?: string
}

/** The fields that an attempt or a person changes. */
export type ItemProgress = Pick<StoredItem, 'attempts' | 'status' | 'dueAtMs' | 'error'>

/** More than a person ever leaves behind: what makes so many without a network would go on until the disk is full. */
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
