import { statement } from '../statement.ts'

/** Takes a user. Until this transaction ends, nobody else begins an operation of this user. */
export const lockOperations = statement('lock_operations', {
  postgres: `SELECT pg_advisory_xact_lock(hashtextextended('ichido.operations ' || $1::text, 0))`,
  sqlite: [],
})

/** Takes a user and an operation that is not counted: how many others of this user have not ended. */
export const countOperations = statement(
  'count_operations',
  `SELECT (SELECT count(*) FROM ichido.redrives WHERE state = 'running' AND actor = $1 AND id <> $2)
    + (SELECT count(*) FROM ichido.backfills WHERE state = 'running' AND actor = $1 AND id <> $2) AS count`,
)
