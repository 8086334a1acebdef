import type { World } from '../world.ts'
import { NoSuchItem, OutboxClosed } from './errors.ts'
import { isChange, type OutboxChange, type OutboxItem, type Send } from './item.ts'
import { type Outcome, Pass } from './pass.ts'
import type { ItemProgress, Network, OutboxLock, OutboxStore, StoredItem, Tabs } from './ports.ts'
import { newItem, progressed, sameBody } from './stored-item.ts'

export type OutboxWorld = Pick<World, 'now' | 'after' | 'random' | 'uuid'>

export interface OutboxOptions<Body, Answer> {
  store: OutboxStore
  send: Send<Body, Answer>
  lock: OutboxLock
  network: Network
  world: OutboxWorld
  tabs?: Tabs
  /** An item that was answered with an error so often is given up; default 3. */
  attemptsMax?: number
}

export interface FlushOptions {
  /** Leave alone what waits for its next attempt. */
  onlyDue?: boolean
}

const ATTEMPTS_MAX = 3

/**
 * Keeps what is to be delivered, through the end of the page or the process, and delivers it when `flush` is called.
 * `openOutbox` gives one that flushes by itself.
 */
export class Outbox<Body = unknown, Answer = unknown> {
  readonly #options: OutboxOptions<Body, Answer>
  readonly #attemptsMax: number
  readonly #listeners = new Set<(change: OutboxChange<Body, Answer>) => void>()
  /** What is being written down or sent right now, by us. */
  readonly #saving = new Map<string, StoredItem>()
  /** What got no answer in our last flushes. */
  readonly #silent = new Set<string>()
  readonly #closing = new AbortController()
  readonly #underWay = new Set<Promise<unknown>>()
  readonly #unsubscribe: (() => void) | undefined

  constructor(options: OutboxOptions<Body, Answer>) {
    this.#options = options
    this.#attemptsMax = options.attemptsMax ?? ATTEMPTS_MAX
    if (!Number.isSafeInteger(this.#attemptsMax) || this.#attemptsMax < 1) {
      throw new RangeError(`attemptsMax must be a whole number from 1 on, not ${options.attemptsMax}`)
    }
    this.#unsubscribe = options.tabs?.onTold((change) => {
      if (isChange<Body, Answer>(change)) this.#notify(change.item, change.dropped)
    })
  }

  /**
   * Settles when it is kept. Put again under the same key, it is the item that is kept already. Without a key it gets one.
   */
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

  /** In the order in which they were put; what was sent or dropped is not there any more. */
  async list(): Promise<OutboxItem<Body, Answer>[]> {
    this.#refuseClosed()
    const kept = await this.#options.store.list()
    const unwritten = [...this.#saving.values()].filter(({ id }) => kept.every((item) => item.id !== id))
    return [...kept, ...unwritten].map((item) => this.#view(item))
  }

  /**
   * Sends what is queued, one after the other, in order; waits for its turn while another tab or process does. Settles
   * with the items that it tried, as they are now. One that fails does not keep the others from being sent; where nobody
   * seems to answer it ends early.
   */
  async flush({ onlyDue = false }: FlushOptions = {}): Promise<OutboxItem<Body, Answer>[]> {
    this.#refuseClosed()
    const { signal } = this.#closing
    return this.#awaited(this.#options.lock(() => this.#pass(onlyDue).run(), signal))
  }

  /** Gives a failed item as many attempts as a new one; `flush` sends it, in its old place. */
  async retry(id: string): Promise<OutboxItem<Body, Answer>> {
    const item = await this.#find(id)
    const progress: ItemProgress = { attempts: 0, status: 'queued', dueAtMs: 0 }
    if (!(await this.#options.store.update(id, progress))) throw new NoSuchItem(id)
    return this.#tell(progressed(item, progress))
  }

  /** Deletes it, sent or not. */
  async drop(id: string): Promise<void> {
    const item = await this.#find(id)
    if (!(await this.#options.store.remove(id))) throw new NoSuchItem(id)
    this.#tell(item, true)
  }

  /** Calls back for each change, those of other tabs included; the answer calls it off. */
  onChange(listener: (change: OutboxChange<Body, Answer>) => void): () => void {
    this.#listeners.add(listener)
    return () => void this.#listeners.delete(listener)
  }

  /** What is being sent is cut off; it is sent again, under its key, by the next one that opens the outbox. */
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

  /** By `close`, too. */
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
    // The answer may be anything, also what cannot be handed to another tab.
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
        // A fault of the page, which hears of it as of any other; what it put is kept and sent all the same.
        queueMicrotask(() => {
          throw error
        })
      }
    }
    return item
  }

  #view({ dueAtMs: _, ...item }: StoredItem): OutboxItem<Body, Answer> {
    // What was put is a Body; nobody else writes to the store.
    const body = item.body as Body
    return { ...item, body, status: this.#saving.has(item.id) ? 'saving' : item.status }
  }
}
