/** An item as it is kept: what is being done with it right now is not written down. */
export interface StoredItem {
  id: string
  key: string
  /** JSON. */
  body: unknown
  savedAtMs: number
  attempts: number
  status: 'queued' | 'failed'
  /** Not sent before this by itself. */
  dueAtMs: number
  error?: string
}

/** What an attempt, or a person, changes. */
export type ItemProgress = Pick<StoredItem, 'attempts' | 'status' | 'dueAtMs' | 'error'>

/** More than a person ever leaves behind: what makes so many without a network would go on until the disk is full. */
export const ITEMS_MAX = 10_000

/** Where items are kept. What a call has settled survives the end of the page or the process, however it ends. */
export interface OutboxStore {
  /** Settles with the item that is kept under its key: this one, or one that was there before. */
  add(item: StoredItem): Promise<StoredItem>
  get(id: string): Promise<StoredItem | undefined>
  /** In the order in which they were added. */
  list(): Promise<StoredItem[]>
  /** Settles with whether it was there: one that is gone does not come back. */
  update(id: string, progress: ItemProgress): Promise<boolean>
  remove(id: string): Promise<boolean>
  close(): Promise<void>
}

/** Runs one piece of work at a time over all tabs or processes that share a store; free when its holder dies. */
export type OutboxLock = <T>(work: () => Promise<T>, signal: AbortSignal) => Promise<T>

export interface Network {
  /** False: nothing can be sent now. Asked before a flush, and when a try got no answer. */
  online(): boolean | Promise<boolean>
  /** It is known from the server itself, and not only believed. */
  asks?: boolean
  /** Calls back when the network may be there again; the answer calls it off. */
  onOnline(callback: () => void): () => void
}

/** The other pages that show the same outbox. */
export interface Tabs {
  tell(change: unknown): void
  onTold(callback: (change: unknown) => void): () => void
  close(): void
}
