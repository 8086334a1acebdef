import { randomBytes } from 'node:crypto'
import type { World } from '@ichido/sdk/world'
import { v7 } from 'uuid'

interface Timer {
  atMs: number
  callback: () => void
}

/** A world whose time stands still until a test lets it pass. */
export class FakeWorld implements World {
  #ms = Date.UTC(2031, 4, 6)
  #jumpedMs = 0
  readonly #timers = new Set<Timer>()

  readonly now = (): number => this.#ms + this.#jumpedMs
  readonly monotonic = (): number => this.#ms
  readonly soon = (callback: () => void): void => void setImmediate(callback)
  readonly random = (): number => 0.5
  /** Of this world's time, as real ones are. */
  readonly uuid = (): string => v7({ msecs: this.now() })
  readonly secret = (bytes: number): string => randomBytes(bytes).toString('base64url')

  readonly after = (ms: number, callback: () => void): (() => void) => {
    const timer = { atMs: this.#ms + ms, callback }
    this.#timers.add(timer)
    return () => void this.#timers.delete(timer)
  }

  /** How long each timer that is set still has to go, soonest first. */
  get pendingMs(): number[] {
    return [...this.#timers].map(({ atMs }) => atMs - this.#ms).sort((a, b) => a - b)
  }

  /** Sets the wall clock without any time passing. */
  jump(ms: number): void {
    this.#jumpedMs += ms
  }

  /** Lets time pass; every timer goes off at its instant, and what it set in motion settles before the next one. */
  async pass(ms: number): Promise<void> {
    const untilMs = this.#ms + ms
    await settled()
    for (;;) {
      const [next] = [...this.#timers].filter(({ atMs }) => atMs <= untilMs).sort((a, b) => a.atMs - b.atMs)
      if (next === undefined) break
      this.#ms = Math.max(this.#ms, next.atMs)
      this.#timers.delete(next)
      next.callback()
      await settled()
    }
    this.#ms = untilMs
  }
}

/** Everything that needs no timer and no input has happened. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve))
}
