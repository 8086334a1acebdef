import type pg from 'pg'
import type { Command } from '../store/port.ts'
import { statement } from '../store/statement.ts'
import { interpose } from './interpose.ts'
import { until } from './store.ts'

// Also of a command that has no patience itself.
const wait = statement('', `SELECT pg_advisory_xact_lock($1) FROM set_config('lock_timeout', '5s', true)`)
let gates = 0

/**
 * Holds a transaction on PostgreSQL at a chosen point, so that another one meets it there. A transaction waits 5 s at
 * most; then its lock timeout strikes.
 */
export class Gate {
  readonly #id = ++gates
  readonly #client: pg.Client
  #isOpen = false

  private constructor(client: pg.Client) {
    this.#client = client
  }

  /** On a connection that is for gates only. */
  static async shut(client: pg.Client): Promise<Gate> {
    const gate = new Gate(client)
    await client.query('SELECT pg_advisory_lock($1)', [gate.#id])
    return gate
  }

  /** The command, held after the statement of this name, or before its commit. */
  hold<T>(command: Command<T>, after: string | null = null): Command<T> {
    return interpose(command, after, () => ({ kind: 'query', statement: wait, params: [this.#id] }))
  }

  /** Settles when somebody waits at the gate. */
  async reached(): Promise<void> {
    const text = `SELECT 1 FROM pg_locks WHERE locktype = 'advisory' AND objid = $1 AND NOT granted
      AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
    await until('a transaction at the gate', async () => (await this.#client.query(text, [this.#id])).rowCount)
  }

  /** Settles when a transaction waits for a row, or for another transaction, of this database. */
  async someoneWaits(): Promise<void> {
    const text = `SELECT 1 FROM pg_stat_activity
      WHERE datname = current_database() AND wait_event_type = 'Lock' AND wait_event <> 'advisory'`
    await until(
      'a transaction that waits for a lock',
      async () => this.#isOpen || (await this.#client.query(text)).rowCount,
    )
  }

  async open(): Promise<void> {
    this.#isOpen = true
    await this.#client.query('SELECT pg_advisory_unlock($1)', [this.#id])
  }
}
