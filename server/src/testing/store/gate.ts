import type pg from 'pg'
import type { Command } from '../../store/port.ts'
import { unnamed } from '../../store/statement.ts'
import { interpose } from './interpose.ts'
import { until } from './store.ts'

// Commands with a shorter lock timeout also wait at the gate.
const wait = unnamed(`SELECT pg_advisory_xact_lock($1) FROM set_config('lock_timeout', '5s', true)`)
let gates = 0

/**
 * Holds a transaction on PostgreSQL at a chosen point, so that another transaction meets it there. A transaction waits
 * for 5 s at most. Then its lock timeout ends it, and `open` throws: otherwise a test would pass although its second
 * command waited by mistake.
 */
export class Gate {
  readonly #id = ++gates
  readonly #client: pg.Client
  #isOpen = false
  /** The transactions that were seen at the gate. */
  readonly #held = new Set<string>()

  private constructor(client: pg.Client) {
    this.#client = client
  }

  /** The connection is used only for gates. */
  static async shut(client: pg.Client): Promise<Gate> {
    const gate = new Gate(client)
    await client.query('SELECT pg_advisory_lock($1)', [gate.#id])
    return gate
  }

  /** The command, held after the statement of this name, or before its commit. */
  hold<T>(command: Command<T>, after: string | null = null): Command<T> {
    return interpose(command, after, () => ({ kind: 'query', statement: wait, params: [this.#id] }))
  }

  /** Resolves when a transaction waits at the gate. */
  async reached(): Promise<void> {
    await until('a transaction at the gate', async () => {
      for (const held of await this.#waiting()) this.#held.add(held)
      return this.#held.size > 0
    })
  }

  /**
   * Names of process and virtual transaction: a connection whose transaction was canceled may return with the next one.
   * Both come from pg_locks, because pg_stat_activity is read at another moment and may still show the earlier one.
   */
  async #waiting(): Promise<string[]> {
    const text = `SELECT pid || ' in ' || virtualtransaction AS held FROM pg_locks
      WHERE locktype = 'advisory' AND objid = $1 AND classid = 0 AND NOT granted
        AND database = (SELECT oid FROM pg_database WHERE datname = current_database())`
    const { rows } = await this.#client.query<{ held: string }>(text, [this.#id])
    return rows.map(({ held }) => held)
  }

  /** Resolves when a transaction of this database waits for any lock except a gate. */
  async someoneWaits(): Promise<void> {
    // Locks that are named by a hash have a classid. A gate is named by a small number.
    const text = `SELECT 1 FROM pg_locks l JOIN pg_stat_activity a USING (pid)
      WHERE a.datname = current_database() AND NOT l.granted AND (l.locktype <> 'advisory' OR l.classid <> 0)`
    await until(
      'a transaction that waits for a lock',
      async () => this.#isOpen || (await this.#client.query(text)).rowCount,
    )
  }

  async open(): Promise<void> {
    this.#isOpen = true
    const waiting = await this.#waiting()
    await this.#client.query('SELECT pg_advisory_unlock($1)', [this.#id])
    const gone = [...this.#held].filter((held) => !waiting.includes(held))
    if (gone.length > 0) throw new Error(`The gate gave way to the transaction of ${gone.join(', ')}`)
  }
}
