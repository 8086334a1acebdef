import type pg from 'pg'

/** What a new connection leads to. */
export interface Connection {
  /**
   * A pooler such as PgBouncer sits in between: the next transaction may run on another session of PostgreSQL, and what is
   * set on this one is left to others.
   */
  pooled: boolean
  /** Of the server, not of the session: it holds for every session that a pooler may choose. */
  durability: { fsync: string; full_page_writes: string }
}

/** A server that is silent for longer than a statement may wait for a lock is given up on. */
export const WITHIN = { query_timeout: 10_000 }

const READ_ONLY = '25006'

/** A standby answers, and takes no writes. To callers that is the store being away, as when PostgreSQL says so itself. */
export class Standby extends Error {
  override readonly name = 'Standby'
  readonly code = READ_ONLY
}

const QUESTION = `SELECT pg_backend_pid() AS pid, pg_is_in_recovery() AS standby,
  current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes`

/**
 * PostgreSQL tells every client the process that serves it, for the client to cancel statements. A pooler makes that number up,
 * for the process changes: so it differs from what the session says of itself. PgBouncer does it in every mode. Which mode it
 * is cannot be told for certain, so a pooler is always taken for one in transaction mode, which is right in session mode too.
 */
export async function inspect(client: pg.ClientBase): Promise<Connection> {
  const question = { text: QUESTION, ...WITHIN }
  const { rows } = await client.query(question)
  const [{ pid, standby, ...durability }] = rows
  if (standby) throw new Standby('This PostgreSQL is a standby, which accepts no writes')
  return { pooled: !('processID' in client) || client.processID !== pid, durability }
}
