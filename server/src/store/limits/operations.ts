import { type Command, command } from '../port.ts'
import { query, type Work } from '../statement.ts'
import { countOperations, lockOperations } from './operations.sql.ts'

/** An operation that is about to begin, and how many of its user's may run at a time. */
export interface NewOperation {
  id: string
  actor: string
  max: number
}

/**
 * Begins a redrive or backfill, unless its user has as many running as it may: then the answer is null, and nothing is done.
 * They are counted by a statement after the lock, which sees what others committed while the lock was waited for.
 */
export function withinOperations<T>({ id, actor, max }: NewOperation, begin: Command<T>): Command<T | null> {
  return command(begin.name, function* work(again): Work<T | null> {
    yield* query(lockOperations, { actor })
    const [others] = yield* query(countOperations, { actor, id })
    if (others === undefined) throw new Error('The count of operations has no row')
    return others.count < max ? yield* begin.work(again) : null
  })
}
