import { type DBSchema, type IDBPDatabase, type IDBPObjectStore, openDB } from 'idb'
import {
  type ItemProgress,
  OutboxFull,
  OutboxTooNew,
  OutboxUnavailable,
  parseItem,
  progressed,
  type StoredItem,
} from './item.ts'
import { ITEMS_MAX, type OutboxStore } from './ports.ts'

const VERSION = 1

interface Tables extends DBSchema {
  /** The key is the number that the item got when it was added. */
  items: { key: number; value: StoredItem; indexes: { id: string; key: string } }
  /** Rows that are not valid items. */
  damaged: { key: number; value: unknown }
}

type Names = ('items' | 'damaged')[]
type Items = IDBPObjectStore<Tables, Names, 'items', 'readwrite'>
type Damaged = IDBPObjectStore<Tables, Names, 'damaged', 'readwrite'>

/** The options of `indexedDbStore`. */
export interface IndexedDbOptions {
  /** The name of the database. */
  name: string
  /** Called with a sentence about items that could not be read. */
  warn(message: string): void
}

/** Opens a store of items in IndexedDB. */
export async function indexedDbStore(options: IndexedDbOptions): Promise<OutboxStore> {
  const store = new IndexedDbStore(options)
  await store.open()
  return store
}

class IndexedDbStore implements OutboxStore {
  readonly #options: IndexedDbOptions
  #db: IDBPDatabase<Tables> | undefined

  constructor(options: IndexedDbOptions) {
    this.#options = options
  }

  async open(): Promise<IDBPDatabase<Tables>> {
    if (this.#db !== undefined) return this.#db
    if (globalThis.indexedDB === undefined) throw unavailable('it has no IndexedDB')
    const forget = () => {
      this.#db?.close()
      this.#db = undefined
    }
    const db = await openDB<Tables>(this.#options.name, VERSION, {
      upgrade(fresh) {
        const items = fresh.createObjectStore('items', { autoIncrement: true })
        items.createIndex('id', 'id', { unique: true })
        items.createIndex('key', 'key', { unique: true })
        fresh.createObjectStore('damaged', { autoIncrement: true })
      },
      // A page with a newer version waits until this connection is closed.
      blocking: forget,
      // The browser closed it, for example because the site's data was cleared.
      terminated: forget,
    }).catch((error: unknown) => {
      throw explain(error)
    })
    this.#db = db
    return db
  }

  add(item: StoredItem): Promise<StoredItem> {
    return this.#transact(async (items, damaged) => {
      const n = await items.index('key').getKey(item.key)
      const kept = n === undefined ? undefined : await this.#read(items, damaged, n, await items.get(n))
      if (kept !== undefined) return kept
      if ((await items.count()) >= ITEMS_MAX) {
        throw new OutboxFull(
          `There are ${ITEMS_MAX} items in the outbox, which is the maximum; this item was not stored`,
        )
      }
      await items.add(item)
      return item
    })
  }

  get(id: string): Promise<StoredItem | undefined> {
    return this.#transact(async (items) => {
      const found = parseItem(await items.index('id').get(id))
      return found.ok ? found.value : undefined
    })
  }

  list(): Promise<StoredItem[]> {
    return this.#transact(async (items, damaged) => {
      const [numbers, rows] = await Promise.all([items.getAllKeys(), items.getAll()])
      const read = await Promise.all(numbers.map((n, i) => this.#read(items, damaged, n, rows[i])))
      return read.filter((item) => item !== undefined)
    })
  }

  update(id: string, progress: ItemProgress): Promise<boolean> {
    return this.#transact(async (items) => {
      const n = await items.index('id').getKey(id)
      const found = n === undefined ? undefined : parseItem(await items.get(n))
      if (!found?.ok) return false
      await items.put(progressed(found.value, progress), n)
      return true
    })
  }

  remove(id: string): Promise<boolean> {
    return this.#transact(async (items) => {
      const n = await items.index('id').getKey(id)
      if (n === undefined) return false
      await items.delete(n)
      return true
    })
  }

  async close(): Promise<void> {
    this.#db?.close()
    this.#db = undefined
  }

  async #transact<T>(work: (items: Items, damaged: Damaged) => Promise<T>): Promise<T> {
    const db = await this.open()
    try {
      const names: Names = ['items', 'damaged']
      // Strict: resolves after the data is on the disk.
      const transaction = db.transaction(names, 'readwrite', { durability: 'strict' })
      const worked = work(transaction.objectStore('items'), transaction.objectStore('damaged'))
      const [result] = await Promise.all([worked, transaction.done])
      return result
    } catch (error) {
      throw explain(error)
    }
  }

  /** Moves an invalid row aside. */
  async #read(items: Items, damaged: Damaged, n: number, row: unknown): Promise<StoredItem | undefined> {
    const found = parseItem(row)
    if (found.ok) return found.value
    await Promise.all([damaged.add(row), items.delete(n)])
    const { name, warn } = this.#options
    warn(`An item of ${name} cannot be read: ${found.problem}. It was moved to "damaged"; the other items are intact.`)
    return undefined
  }
}

function explain(error: unknown): unknown {
  if (!(error instanceof DOMException)) return error
  if (error.name === 'QuotaExceededError') {
    return new OutboxFull(
      'The browser has no more storage for this site, so the item was not stored; free some, and try again',
      {
        cause: error,
      },
    )
  }
  if (error.name === 'VersionError') {
    return new OutboxTooNew('The outbox was written by a newer version of this page; reload the page', { cause: error })
  }
  return unavailable(error.message, error)
}

function unavailable(why: string, cause?: unknown): OutboxUnavailable {
  return new OutboxUnavailable(
    `This browser cannot store data here (a private window, or site data is blocked): ${why}`,
    { cause },
  )
}
