import type { World } from '@ichido/sdk/world'

/** More than this between two looks is a jump; less is drift, or being set right by NTP. */
const JUMP_MS = 2_000

/**
 * Watches the store's clock by this node's own, which only goes forward. Correctness never hangs on the store's clock, but
 * ten minutes that were never waited for must not end anybody's run either: after a jump, no span is believed that is
 * longer than the time since.
 */
export class ClockWatch {
  readonly #world: World
  #seen: { storeMs: number; beforeMs: number; afterMs: number } | null = null
  #jumpedMs = Number.NEGATIVE_INFINITY

  constructor(world: World) {
    this.#world = world
  }

  /** @param beforeMs this node's clock when the store was asked; the answer has just come */
  observe(storeMs: number, beforeMs: number): void {
    const afterMs = this.#world.monotonic()
    const seen = this.#seen
    this.#seen = { storeMs, beforeMs, afterMs }
    if (seen === null) return
    const passedMs = storeMs - seen.storeMs
    const [least, most] = [beforeMs - seen.afterMs, afterMs - seen.beforeMs]
    if (passedMs < least - JUMP_MS || passedMs > most + JUMP_MS) this.#jumpedMs = afterMs
  }

  /** For how long the store's clock has gone evenly. */
  get evenMs(): number {
    return Math.min(Number.MAX_SAFE_INTEGER, Math.floor(this.#world.monotonic() - this.#jumpedMs))
  }
}
