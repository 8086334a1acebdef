import type { World } from '@ichido/sdk/world'

export const FAILURES_MAX = 10
export const WINDOW_MS = 60_000
/** The oldest is forgotten first: an attacker with many addresses cannot fill the memory. */
const ADDRESSES_MAX = 10_000

/** Counts failed authentications per client address: so many a minute are answered 401, the rest 429. */
export class FailureLimit {
  readonly #world: Pick<World, 'monotonic'>
  readonly #windows = new Map<string, { failures: number; endsMs: number }>()

  constructor(world: Pick<World, 'monotonic'>) {
    this.#world = world
  }

  /** Notes one more failure; the answer is how many seconds the address has to wait, or null. */
  record(address: string): number | null {
    const nowMs = this.#world.monotonic()
    const window = this.#windows.get(address)
    if (window !== undefined && window.endsMs > nowMs) {
      window.failures++
      return window.failures > FAILURES_MAX ? Math.ceil((window.endsMs - nowMs) / 1000) : null
    }
    // Put in anew, so that the map's order is that of the windows' ends.
    this.#windows.delete(address)
    if (this.#windows.size >= ADDRESSES_MAX) {
      const [oldest] = this.#windows.keys()
      if (oldest !== undefined) this.#windows.delete(oldest)
    }
    this.#windows.set(address, { failures: 1, endsMs: nowMs + WINDOW_MS })
    return null
  }
}
