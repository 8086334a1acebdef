import { statement } from '../statement.ts'

/** Until this transaction ends, no other transaction begins an operation of this user. */
export const lockOperations = statement('lock_operations', {
  params: { actor: 'text' },
  row: {},
  postgres: `SELECT pg_advisory_xact_lock(hashtextextended('ichido.operations ' || $actor::text, 0))`,
  sqlite: [],
})

/** Counts the operations of the user that have not ended, without the operation `id`. */
export const countOperations = statement('count_operations', {
  params: { actor: 'text', id: 'text' },
  row: { count: 'integer' },
  sql: `SELECT (SELECT count(*) FROM ichido.redrives WHERE state = 'running' AND actor = $actor AND id <> $id)
    + (SELECT count(*) FROM ichido.backfills WHERE state = 'running' AND actor = $actor AND id <> $id) AS count`,
})
