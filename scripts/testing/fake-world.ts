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
  /** Contains this world's time, like real ids. */
  readonly uuid = (): string => v7({ msecs: this.now() })
  readonly secret = (bytes: number): string => randomBytes(bytes).toString('base64url')

  readonly after = (ms: number, callback: () => void): (() => void) => {
    const timer = { atMs: this.#ms + ms, callback }
    this.#timers.add(timer)
    return () => void this.#timers.delete(timer)
  }

  /** The remaining time of each timer, soonest first. */
  get pendingMs(): number[] {
    return [...this.#timers].map(({ atMs }) => atMs - this.#ms).sort((a, b) => a - b)
  }

  /** Sets the wall clock without letting time pass. */
  jump(ms: number): void {
    this.#jumpedMs += ms
  }

  /** Lets time pass. Every timer fires at its time, and its effects settle before the next timer fires. */
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

/** Resolves when everything has happened that needs no timer and no input. */
export async function settled(): Promise<void> {
  for (let turn = 0; turn < 5; turn++) await new Promise((resolve) => setImmediate(resolve))
}
