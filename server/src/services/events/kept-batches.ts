import type { EventBatch } from './event-batch.ts'

/** What was read for some of those who are behind, by the cursor that it comes after: many stand at the same place. */
export class KeptBatches {
  readonly #batches = new Map<number, EventBatch>()
  #bytes = 0

  after(cursor: number): EventBatch | undefined {
    return this.#batches.get(cursor)
  }

  /** Each comes after the one before it, and the first after the cursor. Of all that is kept the oldest gives way. */
  keep(cursor: number, batches: readonly EventBatch[], bytesMax: number): void {
    let after = cursor
    for (const batch of batches) {
      this.#drop(after)
      this.#batches.set(after, batch)
      this.#bytes += batch.bytes.length
      after = batch.last
    }
    for (const oldest of this.#batches.keys()) {
      if (this.#bytes <= bytesMax) return
      this.#drop(oldest)
    }
  }

  #drop(cursor: number): void {
    this.#bytes -= this.#batches.get(cursor)?.bytes.length ?? 0
    this.#batches.delete(cursor)
  }
}
