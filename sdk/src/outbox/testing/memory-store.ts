import { progressed, type StoredItem } from '../item.ts'
import type { OutboxStore } from '../ports.ts'

/** A disk that outlives the stores on it, and can be told to fail. */
export class MemoryDisk {
  readonly items = new Map<string, StoredItem>()
  writes = 0
  /** Called before (and again after) each write; what it throws is a crash. */
  onWrite: (when: 'before' | 'after', n: number) => void = () => {}

  store(): OutboxStore {
    const write = <T>(work: () => T): T => {
      const n = ++this.writes
      this.onWrite('before', n)
      const result = work()
      this.onWrite('after', n)
      return result
    }
    const { items } = this
    return {
      async add(item) {
        const kept = [...items.values()].find(({ key }) => key === item.key)
        if (kept === undefined) write(() => items.set(item.id, item))
        return kept ?? item
      },
      get: async (id) => items.get(id),
      list: async () => [...items.values()],
      async update(id, progress) {
        const item = items.get(id)
        if (item !== undefined) write(() => items.set(id, progressed(item, progress)))
        return item !== undefined
      },
      remove: async (id) => items.has(id) && write(() => items.delete(id)),
      close: async () => {},
    }
  }
}
