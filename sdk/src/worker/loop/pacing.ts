import type { World } from '../../world.ts'

/** How long a poll waits for work at the control plane. */
const LONG_WAIT_MS = 20_000
/** A poll that ended sooner than this was not waiting for work. */
const EARLY_MS = 1_000
/** Long polls are given up after this many in a row were cut or answered too early. */
const CUTS_MAX = 2
/** How often long polls are tried again after they were given up. */
const LONG_AGAIN_MS = 300_000
/** The pause between polls that do not wait (S1, "polling interval"). */
const SHORT_FIRST_MS = 5_000
const SHORT_MAX_MS = 30_000
const SHORT_GROWTH = 1.5
/** The pause after a failed poll. */
const RETRY_FIRST_MS = 1_000
const RETRY_MAX_MS = 30_000
const JITTER = 0.2

export const GIVEN_UP = `A proxy may cut long calls: for ${LONG_AGAIN_MS / 60_000} minutes the worker polls at intervals`

/** Decides how long a poll waits, and the pause before the next one. */
export class Pacing {
  readonly #world: World
  #cuts = 0
  #failures = 0
  #shortMs = SHORT_FIRST_MS
  #longAgainAtMs: number | null = null

  constructor(world: World) {
    this.#world = world
  }

  get waitMs(): number {
    if (this.#longAgainAtMs !== null && this.#world.monotonic() >= this.#longAgainAtMs) this.#longAgainAtMs = null
    return this.#longAgainAtMs === null ? LONG_WAIT_MS : 0
  }

  /** Returns the pause after a poll that was answered with `found` leases. */
  answered(tookMs: number, found: number): number {
    this.#failures = 0
    if (found > 0) {
      this.#cuts = 0
      this.#shortMs = SHORT_FIRST_MS
      return 0
    }
    if (this.#longAgainAtMs !== null) return this.#nextShort()
    if (tookMs >= EARLY_MS) {
      this.#cuts = 0
      return 0
    }
    return this.#cut()
  }

  /** `cut`: a proxy answered, or the connection was closed. */
  failed(tookMs: number, cut: boolean): number {
    if (cut && this.#longAgainAtMs === null && tookMs >= EARLY_MS) return this.#cut()
    // No server answers: the control plane itself closed the connection when it stopped.
    this.#cuts = 0
    return this.#jitter(Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** Math.min(this.#failures++, 10)))
  }

  #cut(): number {
    if (++this.#cuts < CUTS_MAX) return this.#jitter(RETRY_FIRST_MS)
    this.#cuts = 0
    this.#longAgainAtMs = this.#world.monotonic() + LONG_AGAIN_MS
    return this.#nextShort()
  }

  #nextShort(): number {
    const ms = this.#shortMs
    this.#shortMs = Math.min(SHORT_MAX_MS, ms * SHORT_GROWTH)
    return this.#jitter(ms)
  }

  #jitter(ms: number): number {
    return ms * (1 - JITTER + 2 * JITTER * this.#world.random())
  }
}
