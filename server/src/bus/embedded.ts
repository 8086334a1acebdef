import type { Bus, News, Topic } from './port.ts'

/** Wake-ups inside one process. */
export class EmbeddedBus implements Bus {
  readonly #callbacks = new Map<string, Set<(news?: News) => void>>()

  wake(topics: readonly Topic[], news?: News): void {
    for (const topic of topics) {
      const callbacks = this.#callbacks.get(topic)
      // Nobody follows most jobs. A callback may end its own subscription.
      if (callbacks !== undefined) for (const callback of [...callbacks]) callback(news)
    }
  }

  subscribe(topic: Topic, callback: (news?: News) => void): () => void {
    const found = this.#callbacks.get(topic)
    const callbacks = found ?? new Set()
    if (found === undefined) this.#callbacks.set(topic, callbacks)
    callbacks.add(callback)
    return () => {
      callbacks.delete(callback)
      if (callbacks.size === 0 && this.#callbacks.get(topic) === callbacks) this.#callbacks.delete(topic)
    }
  }

  /** Wakes all subscribers, because wake-ups may have been missed. */
  wakeAll(): void {
    this.wake([...this.#callbacks.keys()] as Topic[])
  }

  async close(): Promise<void> {
    this.#callbacks.clear()
  }
}
