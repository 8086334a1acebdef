import { sleep, type World } from '@ichido/sdk/world'
import { StoreUnavailable } from '../../core/node/store-errors.ts'

/** As long as the store tries a command: who has waited for so long for its turn alone is gone, or asks again. */
const WAIT_MAX_MS = 15_000

/** One call of a user's at a time: all of them would wait for the same row, each on a connection that others need. */
export class PerUserQueue {
  readonly #world: World
  readonly #last = new Map<string, Promise<void>>()

  constructor(world: World) {
    this.#world = world
  }

  async take<T>(user: string, call: () => Promise<T>): Promise<T> {
    const before = this.#last.get(user)
    const mine = Promise.withResolvers<void>()
    this.#last.set(user, mine.promise)
    try {
      if (before !== undefined) await this.#await(before)
      return await call()
    } finally {
      // Who comes next waits for those before, too, when this one has given up.
      void Promise.resolve(before).then(mine.resolve)
      if (this.#last.get(user) === mine.promise) void mine.promise.then(() => this.#forget(user, mine.promise))
    }
  }

  async #await(before: Promise<void>): Promise<void> {
    const done = new AbortController()
    const late = sleep(this.#world, WAIT_MAX_MS, done.signal).then(() => true)
    const isLate = await Promise.race([before.then(() => false), late])
    done.abort()
    if (isLate) throw new StoreUnavailable('Timed out waiting for a lock on this user')
  }

  #forget(user: string, mine: Promise<void>): void {
    if (this.#last.get(user) === mine) this.#last.delete(user)
  }
}
