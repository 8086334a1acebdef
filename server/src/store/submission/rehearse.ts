import { type Command, command, type Store } from '../port.ts'
import type { Work } from '../statement.ts'

/** What a command would answer now: the same statements run in a transaction that is rolled back. */
export async function rehearse<T>(store: Pick<Store, 'write'>, { name, work }: Command<T>): Promise<T> {
  const rehearsal = command(name, function* rehearsed(again): Work<never> {
    throw new Rehearsed(yield* work(again))
  })
  try {
    return await store.write(rehearsal)
  } catch (error) {
    if (error instanceof Rehearsed) return error.answer as T
    throw error
  }
}

/** Thrown out of a transaction to end it without a commit. */
class Rehearsed extends Error {
  readonly answer: unknown

  constructor(answer: unknown) {
    super('This was a rehearsal')
    this.answer = answer
  }
}
