import type { Network, OutboxLock } from '../ports.ts'

/** A network that a test takes away and gives back. */
export class FakeNetwork implements Network {
  isOnline = true
  asks = false
  readonly #callbacks = new Set<() => void>()

  readonly online = (): boolean => this.isOnline
  readonly onOnline = (callback: () => void): (() => void) => {
    this.#callbacks.add(callback)
    return () => void this.#callbacks.delete(callback)
  }

  set(isOnline: boolean): void {
    this.isOnline = isOnline
    if (isOnline) for (const callback of this.#callbacks) callback()
  }
}

/** One after the other, as tabs that share a Web Lock. */
export function sharedLock(): OutboxLock {
  let last: Promise<unknown> = Promise.resolve()
  return (work, signal) => {
    const turn = last.then(() => {
      signal.throwIfAborted()
      return work()
    })
    last = turn.catch(() => {})
    return turn
  }
}

/** An answer with this status, as an error. */
export function answered(status: number, more: object = {}): Error {
  return Object.assign(new Error(`answered ${status}`), { status, ...more })
}
