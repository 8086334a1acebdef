import { type Command, command } from '../port.ts'
import { query, statement, type Work } from '../statement.ts'

/** Until this transaction ends, no other transaction begins an operation of this user. */
const lockOperations = statement('lock_operations', {
  params: { actor: 'text' },
  row: {},
  postgres: `SELECT pg_advisory_xact_lock(hashtextextended('ichido.operations ' || $actor::text, 0))`,
  sqlite: [],
})

/** Counts the running operations of the user, without the operation `id`. */
const countOperations = statement('count_operations', {
  params: { actor: 'text', id: 'text' },
  row: { count: 'integer' },
  sql: `SELECT (SELECT count(*) FROM ichido.operations WHERE state = 'running' AND actor = $actor AND id <> $id)
    + (SELECT count(*) FROM ichido.backfills WHERE state = 'running' AND actor = $actor AND id <> $id) AS count`,
})

/** A new operation, and how many operations its user may run at a time. */
interface NewOperation {
  id: string
  actor: string
  max: number
}

/**
 * Begins a redrive or backfill, or returns null if its user already runs `max` of them. The count is a statement after
 * the lock, so it sees what was committed during the wait.
 */
export function withinOperations<T>({ id, actor, max }: NewOperation, begin: Command<T>): Command<T | null> {
  return command(begin.name, function* work(again): Work<T | null> {
    yield* query(lockOperations, { actor })
    const [others] = yield* query(countOperations, { actor, id })
    if (others === undefined) throw new Error('The count of operations has no row')
    return others.count < max ? yield* begin.work(again) : null
  })
}
