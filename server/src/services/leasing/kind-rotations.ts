import type { KindRotation } from '../../store/leasing/lease-runs.ts'

/** The places of so many queues are kept: those that were looked at last. */
const QUEUES_MAX = 10_000

/** Where the rotation of kinds stands in each queue with more kinds than are looked at together. */
export class KindRotations {
  readonly #places = new Map<string, string>()

  get places(): KindRotation {
    return this.#places
  }

  keep(moved: KindRotation): void {
    for (const [queue, last] of moved) {
      this.#places.delete(queue)
      if (last === null) continue
      const [oldest] = this.#places.keys()
      if (this.#places.size >= QUEUES_MAX && oldest !== undefined) this.#places.delete(oldest)
      this.#places.set(queue, last)
    }
  }
}
