import type { World } from '@ichido/sdk/world'

/** So long after its last poll a worker counts as there: the longest poll takes 50 s. */
const SEEN_MS = 60_000
const ANY_KIND = '*'
const PLACES_MAX = 10_000

/**
 * Which queues and kinds this node was asked for work of. Workers inside a node's own process are in no table: an idle one
 * takes what comes, and a busy one holds runs, which every node sees; this tells of the moments in between.
 */
export class RecentPolls {
  readonly #world: Pick<World, 'monotonic'>
  readonly #seen = new Map<string, { workerId: string; atMs: number }>()

  constructor(world: Pick<World, 'monotonic'>) {
    this.#world = world
  }

  /** A worker asks for work; no kinds: any. */
  note(workerId: string, queues: readonly string[], kinds: readonly string[]): void {
    const sighting = { workerId, atMs: this.#world.monotonic() }
    if (this.#seen.size >= PLACES_MAX) this.#seen.clear()
    for (const queue of queues) {
      for (const kind of kinds.length === 0 ? [ANY_KIND] : kinds) this.#seen.set(place(queue, kind), sighting)
    }
  }

  /** It asks no more. Another worker of its queues, if there is one, is in the table. */
  forget(workerId: string): void {
    for (const [place, sighting] of this.#seen) if (sighting.workerId === workerId) this.#seen.delete(place)
  }

  /** How many ms ago somebody last asked; null: not lately. */
  agoMs(queue: string, kind: string): number | null {
    const seen = [ANY_KIND, kind].map((one) => this.#seen.get(place(queue, one))?.atMs ?? Number.NEGATIVE_INFINITY)
    const agoMs = this.#world.monotonic() - Math.max(...seen)
    return agoMs <= SEEN_MS ? agoMs : null
  }
}

/** Neither name can hold a space. */
function place(queue: string, kind: string): string {
  return `${queue} ${kind}`
}
