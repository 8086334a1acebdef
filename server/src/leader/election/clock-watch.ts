import type { World } from '@ichido/sdk/world'

/** A difference above this is a jump. A smaller one is drift, or a correction by NTP. */
const JUMP_MS = 2_000

/**
 * Compares the store's clock with this node's monotonic clock. Correctness never depends on the store's clock, but a
 * ten-minute jump must end no run either: after a jump, no time span counts that is longer than the time since the
 * jump.
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

  /** How long the store's clock has run without a jump. */
  get evenMs(): number {
    return Math.min(Number.MAX_SAFE_INTEGER, Math.floor(this.#world.monotonic() - this.#jumpedMs))
  }
}
