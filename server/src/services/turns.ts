/** One call of a user's at a time: all of them would wait for the same row, each on a connection that others need. */
export class Turns {
  readonly #last = new Map<string, Promise<void>>()

  async take<T>(user: string, call: () => Promise<T>): Promise<T> {
    const before = this.#last.get(user)
    const mine = Promise.withResolvers<void>()
    this.#last.set(user, mine.promise)
    try {
      await before
      return await call()
    } finally {
      mine.resolve()
      if (this.#last.get(user) === mine.promise) this.#last.delete(user)
    }
  }
}
