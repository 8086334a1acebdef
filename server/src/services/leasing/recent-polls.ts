import type { World } from '@ichido/sdk/world'
import type { LastPoll } from '../../core/run/waiting.ts'

/** A worker counts as present for this long after its last poll. The longest poll takes 50 s. */
const SEEN_MS = 60_000
const ANY_KIND = '*'
const PLACES_MAX = 10_000

/**
 * The queues and kinds that workers have polled on this node. Workers inside the process of a node are in no table. An
 * idle one takes every new job, and a busy one holds runs, which every node sees. This covers the moments in between.
 */
export class RecentPolls {
  readonly #world: Pick<World, 'monotonic'>
  readonly #seen = new Map<string, { workerId: string; atMs: number }>()

  constructor(world: Pick<World, 'monotonic'>) {
    this.#world = world
  }

  /** Notes a poll; no kinds: any kind. */
  note(workerId: string, queues: readonly string[], kinds: readonly string[]): void {
    const sighting = { workerId, atMs: this.#world.monotonic() }
    if (this.#seen.size >= PLACES_MAX) this.#seen.clear()
    for (const queue of queues) {
      for (const kind of kinds.length === 0 ? [ANY_KIND] : kinds) this.#seen.set(place(queue, kind), sighting)
    }
  }

  /** The worker has stopped. Other workers of its queues are in the table. */
  forget(workerId: string): void {
    for (const [place, sighting] of this.#seen) if (sighting.workerId === workerId) this.#seen.delete(place)
  }

  /** Null: no recent poll. */
  last(queue: string, kind: string): LastPoll | null {
    const [a, b] = [this.#seen.get(place(queue, ANY_KIND)), this.#seen.get(place(queue, kind))]
    const last = a === undefined || (b !== undefined && b.atMs > a.atMs) ? b : a
    if (last === undefined) return null
    const agoMs = this.#world.monotonic() - last.atMs
    return agoMs <= SEEN_MS ? { workerId: last.workerId, agoMs } : null
  }
}

/** Names have no spaces. */
function place(queue: string, kind: string): string {
  return `${queue} ${kind}`
}
