import type { Leased, LeaseFrom, LeaseItem, Position } from '../../store/leasing/lease-runs.ts'
import type { Deps } from '../deps.ts'

/** A queue that has handed out fewer runs has no past worth stepping around. */
const PAST_RUNS = 10_000
/** How long something that came in before the position may wait while there is work behind it. */
const FULL_SCAN_MS = 200
const PLACES_MAX = 1_000

interface Place {
  last: Position | null
  runs: number
  fullScanAtMs: number
}

/**
 * Where the scans of a busy queue go on. On PostgreSQL what was leased stays in the index until no snapshot can see it:
 * under an open dump a scan from the beginning takes longer with every lease. So it goes on from the last leased run, and
 * starts from the beginning now and then, and whenever there is nothing behind it.
 */
export class LeasePositions {
  readonly #deps: Pick<Deps, 'world' | 'store'>
  readonly #places = new Map<string, Place>()

  constructor(deps: Pick<Deps, 'world' | 'store'>) {
    this.#deps = deps
  }

  readonly from: LeaseFrom = (queue, kinds) => {
    if (this.#deps.store.engine === 'sqlite') return null
    const nowMs = this.#deps.world.monotonic()
    const place = this.#place(queue, kinds)
    if (place.last !== null && place.runs >= PAST_RUNS && nowMs - place.fullScanAtMs < FULL_SCAN_MS) return place.last
    place.fullScanAtMs = nowMs
    return null
  }
  record(items: readonly LeaseItem[], answers: readonly (readonly Leased[])[]): void {
    if (this.#deps.store.engine === 'sqlite') return
    const lasts = new Map<Place, Leased>()
    items.forEach((item, i) => {
      for (const lease of answers[i] ?? []) {
        const place = this.#place(lease.queue, item.kinds)
        place.runs++
        const last = lasts.get(place)
        if (last === undefined || isBehind(lease, last)) lasts.set(place, lease)
      }
    })
    for (const [place, { priority, fairTag }] of lasts) place.last = { priority, fairTag }
  }

  #place(queue: string, kinds: readonly string[]): Place {
    const name = JSON.stringify([queue, kinds])
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
