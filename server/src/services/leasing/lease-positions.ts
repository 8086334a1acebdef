import type { KindRotation, Leased, LeaseItem, Position, Positions } from '../../store/leasing/lease-runs.ts'
import { placeName } from '../../store/leasing/leased.ts'
import type { Deps } from '../deps.ts'
import { setBounded } from '../limits/maximum.ts'

/** A queue with fewer leased runs has few dead index entries. */
const PAST_RUNS = 10_000
/** A run that came in before the position waits at most this long, while there is work behind it. */
const FULL_SCAN_MS = 200
const PLACES_MAX = 1_000
/** Beyond this, the rotation of the queue that was used longest ago is forgotten. */
const ROTATIONS_MAX = 10_000

interface Place {
  last: Position | null
  runs: number
  fullScanAtMs: number
}

/**
 * The position from which scans of a busy queue continue. On PostgreSQL, leased runs stay in the index until no snapshot can
 * see them: during a long dump, a scan from the beginning takes longer with every lease. So a scan continues from the last
 * leased run. It starts from the beginning at intervals, and when there is nothing behind the position.
 */
export class LeasePositions {
  readonly #deps: Pick<Deps, 'world' | 'store'>
  readonly #places = new Map<string, Place>()

  constructor(deps: Pick<Deps, 'world' | 'store'>) {
    this.#deps = deps
  }

  /** Where a scan of these kinds that begins now goes on; null: it is one from the beginning. */
  from(queue: string, kinds: readonly string[]): Position | null {
    if (this.#deps.store.engine === 'sqlite') return null
    const place = this.#place(placeName(queue, kinds))
    const position = this.#positionOf(place)
    if (position === null) place.fullScanAtMs = this.#deps.world.monotonic()
    return position
  }

  /** The same for a look that may scan these places. Its answer says which of them it has scanned from the beginning. */
  all(places: Iterable<{ queue: string; kinds: readonly string[] }>): Positions {
    const positions = new Map<string, Position>()
    if (this.#deps.store.engine === 'sqlite') return positions
    for (const { queue, kinds } of places) {
      const name = placeName(queue, kinds)
      const position = this.#positionOf(this.#place(name))
      if (position !== null) positions.set(name, position)
    }
    return positions
  }

  /** The look began at `beganMs`. */
  scanned(places: Iterable<string>, beganMs: number): void {
    if (this.#deps.store.engine === 'sqlite') return
    for (const name of places) this.#place(name).fullScanAtMs = beganMs
  }

  #positionOf({ last, runs, fullScanAtMs }: Place): Position | null {
    return runs >= PAST_RUNS && this.#deps.world.monotonic() - fullScanAtMs < FULL_SCAN_MS ? last : null
  }

  record(items: readonly LeaseItem[], answers: readonly (readonly Leased[])[]): void {
    if (this.#deps.store.engine === 'sqlite') return
    const lasts = new Map<Place, Leased>()
    items.forEach((item, i) => {
      for (const lease of answers[i] ?? []) {
        const place = this.#place(placeName(lease.queue, item.kinds))
        place.runs++
        const last = lasts.get(place)
        if (last === undefined || isBehind(lease, last)) lasts.set(place, lease)
      }
    })
    for (const [place, { priority, fairTag }] of lasts) place.last = { priority, fairTag }
  }

  #place(name: string): Place {
    let place = this.#places.get(name)
    if (place === undefined) {
      if (this.#places.size >= PLACES_MAX) this.#places.clear()
      place = { last: null, runs: 0, fullScanAtMs: 0 }
      this.#places.set(name, place)
    }
    return place
  }
}

function isBehind(a: Position, b: Position): boolean {
  return a.priority < b.priority || (a.priority === b.priority && a.fairTag > b.fairTag)
}

/** The place in the rotation of kinds, for queues with more kinds than one statement looks at. */
export class KindRotations {
  readonly #places = new Map<string, string>()

  get places(): KindRotation {
    return this.#places
  }

  keep(moved: KindRotation): void {
    for (const [queue, last] of moved) {
      this.#places.delete(queue)
      if (last !== null) setBounded(this.#places, ROTATIONS_MAX, queue, last)
    }
  }
}
