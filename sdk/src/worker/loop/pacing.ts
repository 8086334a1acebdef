import type { World } from '../../world.ts'

/** As long as a poll waits for work at the control plane. */
const LONG_WAIT_MS = 20_000
/** A poll that ended sooner than this was not waiting for work. */
const EARLY_MS = 1_000
/** So many long polls in a row that something between here and there cut, or answered too early. */
const CUTS_MAX = 2
/** How often long polls are tried again after they were given up. */
const LONG_AGAIN_MS = 300_000
/** Between polls that do not wait (S1, "polling interval"). */
const SHORT_FIRST_MS = 5_000
const SHORT_MAX_MS = 30_000
const SHORT_GROWTH = 1.5
/** After polls that failed. */
const RETRY_FIRST_MS = 1_000
const RETRY_MAX_MS = 30_000
const JITTER = 0.2

/** What is said of long polls that were given up. */
export const GIVEN_UP =
  'A proxy may cut long calls: the worker polls every ' +
  `${SHORT_FIRST_MS / 1_000} to ${SHORT_MAX_MS / 1_000} s, and tries long calls again in ${LONG_AGAIN_MS / 60_000} minutes`

/** How long a poll waits, and how long to wait before the next. */
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

  /** A poll that took this long was answered with so many leases. */
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

  /** `cut`: not the control plane said so, but a proxy, or a connection that was closed. */
  failed(tookMs: number, cut: boolean): number {
    if (cut && this.#longAgainAtMs === null && tookMs >= EARLY_MS) return this.#cut()
    // Nobody was there: it was the control plane that hung up when it stopped, not something on the way.
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
