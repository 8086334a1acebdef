import type { World } from '../world.ts'
import {
  type ItemProgress,
  isChange,
  NoSuchItem,
  newItem,
  type OutboxChange,
  OutboxClosed,
  type OutboxItem,
  progressed,
  type StoredItem,
  sameBody,
} from './item.ts'
import { type Outcome, Pass } from './pass.ts'
import type { Network, OutboxLock, OutboxStore, Send, Tabs } from './ports.ts'

/** The part of the world that an outbox needs. */
export type OutboxWorld = Pick<World, 'now' | 'after' | 'random' | 'uuid'>

/** The options of an `Outbox`. */
export interface OutboxOptions<Body, Answer> {
  /** Keeps the items. */
  store: OutboxStore
  /** Delivers one item. */
  send: Send<Body, Answer>
  /** Lets one tab or process flush at a time. */
  lock: OutboxLock
  /** Tells whether the network works. */
  network: Network
  /** Clock, timers, randomness and ids. */
  world: OutboxWorld
  /** Connects the tabs that show the same outbox. */
  tabs?: Tabs
  /** After this many errors an item fails; default 3. */
  attemptsMax?: number
}

/** The options of `flush`. */
export interface FlushOptions {
  /** Skip items that wait for their next attempt. */
  onlyDue?: boolean
}

const ATTEMPTS_MAX = 3

/**
 * Stores items until they are delivered, beyond the end of the page or the process, and delivers them when `flush` is called.
 * `openOutbox` returns an outbox that flushes by itself.
 */
export class Outbox<Body = unknown, Answer = unknown> {
  readonly #options: OutboxOptions<Body, Answer>
  readonly #attemptsMax: number
  readonly #listeners = new Set<(change: OutboxChange<Body, Answer>) => void>()
  /** Items that are being stored or sent by this process. */
  readonly #saving = new Map<string, StoredItem>()
  /** Items that got no answer in the last flushes. */
  readonly #silent = new Set<string>()
  readonly #closing = new AbortController()
  readonly #underWay = new Set<Promise<unknown>>()
  readonly #unsubscribe: (() => void) | undefined

  constructor(options: OutboxOptions<Body, Answer>) {
    this.#options = options
    this.#attemptsMax = options.attemptsMax ?? ATTEMPTS_MAX
    if (!Number.isSafeInteger(this.#attemptsMax) || this.#attemptsMax < 1) {
      throw new RangeError(`attemptsMax must be a whole number from 1, not ${options.attemptsMax}`)
    }
    this.#unsubscribe = options.tabs?.onTold((change) => {
      if (isChange<Body, Answer>(change)) this.#notify(change.item, change.dropped)
    })
  }

  /** Resolves when the item is stored. A second put with the same key returns the stored item; default: a generated key. */
  async put(body: Body, { key }: { key?: string } = {}): Promise<OutboxItem<Body, Answer>> {
    this.#refuseClosed()
    const { store, world } = this.#options
    const item = newItem(body, key, world)
    this.#begin(item)
    const kept = await this.#awaited(store.add(item)).catch((error: unknown) => {
      this.#end({ item, dropped: true })
      throw error
    })
    const isNew = kept.id === item.id
    this.#end({ item, dropped: !isNew })
    return this.#view(isNew ? item : sameBody(kept, item))
  }

  /** Lists the items that were neither sent nor dropped, in the order of `put`. */
  async list(): Promise<OutboxItem<Body, Answer>[]> {
    this.#refuseClosed()
    const kept = await this.#options.store.list()
    const unwritten = [...this.#saving.values()].filter(({ id }) => kept.every((item) => item.id !== id))
    return [...kept, ...unwritten].map((item) => this.#view(item))
  }

  /**
   * Sends the queued items in order, one at a time, after waiting for a flush in another tab or process. Resolves to the
   * items that it tried. A failed item does not block the others. If the server seems unreachable, the flush ends early.
   */
  async flush({ onlyDue = false }: FlushOptions = {}): Promise<OutboxItem<Body, Answer>[]> {
    this.#refuseClosed()
    const { signal } = this.#closing
    return this.#awaited(this.#options.lock(() => this.#pass(onlyDue).run(), signal))
  }

  /** Gives a failed item as many attempts as a new one; `flush` sends it in its old order. */
  async retry(id: string): Promise<OutboxItem<Body, Answer>> {
    const item = await this.#find(id)
    const progress: ItemProgress = { attempts: 0, status: 'queued', dueAtMs: 0 }
    if (!(await this.#options.store.update(id, progress))) throw new NoSuchItem(id)
    return this.#tell(progressed(item, progress))
  }

  /** Deletes an item, even if it was not sent. */
  async drop(id: string): Promise<void> {
    const item = await this.#find(id)
    if (!(await this.#options.store.remove(id))) throw new NoSuchItem(id)
    this.#tell(item, true)
  }

  /** Calls back for each change, also in other tabs; returns a function that cancels it. */
  onChange(listener: (change: OutboxChange<Body, Answer>) => void): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  /** Interrupts the item that is being sent; the next process that opens the outbox sends it again with its key. */
  async close(): Promise<void> {
    this.#closing.abort(new OutboxClosed())
    this.#unsubscribe?.()
    await Promise.allSettled(this.#underWay)
    this.#options.tabs?.close()
    await this.#options.store.close()
  }

  #pass(onlyDue: boolean): Pass<Body, Answer> {
    const { store, send, network, world } = this.#options
    return new Pass({
      store,
      send,
      network,
      world,
      signal: this.#closing.signal,
      onlyDue,
      attemptsMax: this.#attemptsMax,
      silent: this.#silent,
      begin: (item) => this.#begin(item),
      end: (outcome) => this.#end(outcome),
    })
  }

  /** `close` waits for the work, too. */
  async #awaited<T>(work: Promise<T>): Promise<T> {
    this.#underWay.add(work)
    try {
      return await work
    } finally {
      this.#underWay.delete(work)
    }
  }

  async #find(id: string): Promise<StoredItem> {
    this.#refuseClosed()
    const item = await this.#options.store.get(id)
    if (item === undefined) throw new NoSuchItem(id)
    return item
  }

  #refuseClosed(): void {
    this.#closing.signal.throwIfAborted()
  }

  #begin(item: StoredItem): void {
    this.#saving.set(item.id, item)
    this.#tell(item)
  }

  #end({ item, dropped, sent }: Outcome<Answer>): OutboxItem<Body, Answer> {
    this.#saving.delete(item.id)
    if (sent === undefined) return this.#tell(item, dropped)
    const view = { ...this.#view(item), status: 'sent' as const }
    // Without the answer, which may not be cloneable.
    this.#options.tabs?.tell({ item: view, dropped })
    return this.#notify({ ...view, ...sent }, dropped)
  }

  #tell(item: StoredItem, dropped = false): OutboxItem<Body, Answer> {
    const view = this.#view(item)
    this.#options.tabs?.tell({ item: view, dropped })
    return this.#notify(view, dropped)
  }

  #notify(item: OutboxItem<Body, Answer>, dropped: boolean): OutboxItem<Body, Answer> {
    for (const listener of this.#listeners) {
      try {
        listener({ item, dropped })
      } catch (error) {
        // A bug of the page becomes an uncaught error of the page; the item is kept and sent.
        queueMicrotask(() => {
          throw error
        })
      }
    }
    return item
  }

  #view({ dueAtMs: _, ...item }: StoredItem): OutboxItem<Body, Answer> {
    // Only `put` writes bodies to the store.
    const body = item.body as Body
    return { ...item, body, status: this.#saving.has(item.id) ? 'saving' : item.status }
  }
}
