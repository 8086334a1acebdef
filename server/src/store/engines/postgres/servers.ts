import pg from 'pg'
import { serverUrls } from '../../../core/node/addresses.ts'
import { isConnectionLoss } from './errors.ts'

export const CONNECT_TIMEOUT_MS = 5_000

/** The server behind a new connection. */
export interface Connection {
  /**
   * A pooler such as PgBouncer is in between. The next transaction may run on another session of PostgreSQL, and other clients
   * get the settings of this session.
   */
  pooled: boolean
  /** Settings of the server, so they hold for every session that a pooler may choose. */
  durability: { fsync: string; full_page_writes: string }
}

/** The time limit of a statement. It is longer than any wait for a lock. */
export const WITHIN = { query_timeout: 10_000 }

const READ_ONLY = '25006'

/** A standby accepts no writes. Callers see an unavailable store, as when PostgreSQL reports it itself. */
class Standby extends Error {
  override readonly name = 'Standby'
  readonly code = READ_ONLY
}

const QUESTION = `SELECT pg_backend_pid() AS pid, pg_is_in_recovery() AS standby,
  current_setting('fsync') AS fsync, current_setting('full_page_writes') AS full_page_writes`

/**
 * PostgreSQL tells every client the process id of its session, for canceling statements. A pooler makes up a number, because the
 * process changes. So the number differs from the session's own answer, with PgBouncer in every mode. The mode cannot be
 * detected reliably, so every pooler is treated as one in transaction mode, which is right in session mode, too.
 */
export async function inspect(client: pg.ClientBase): Promise<Connection> {
  const question = { text: QUESTION, ...WITHIN }
  const { rows } = await client.query(question)
  const [{ pid, standby, ...durability }] = rows
  if (standby) throw new Standby('This PostgreSQL is a standby, which accepts no writes')
  return { pooled: !('processID' in client) || client.processID !== pid, durability }
}

/** The servers of an address, and the believed primary among them. All pools of a store share this object. */
export class Servers {
  readonly #urls: readonly string[]
  #at = 0

  constructor(address: string) {
    this.#urls = serverUrls(address)
  }

  get count(): number {
    return this.#urls.length
  }

  /** The address of the believed primary, which node-postgres understands. */
  get url(): string {
    return this.#urls[this.#at] ?? ''
  }

  /** Moves on to the next server. When many connections to one server fail at once, only the first of them moves on. */
  leave(url: string): void {
    if (url === this.url) this.#at = (this.#at + 1) % this.#urls.length
  }

  /** For a pool: each new connection goes to the server that is the believed primary by then. */
  clientClass(): new (config?: pg.ClientConfig) => pg.Client {
    const servers = this
    return class extends pg.Client {
      constructor(config?: pg.ClientConfig) {
        super({ ...config, connectionString: servers.url })
      }
    }
  }

  /** One connection outside of any pool, to the first server that is not a standby. */
  connect(): Promise<pg.Client> {
    return this.tryEach(async () => {
      const client = new pg.Client({ connectionString: this.url, connectionTimeoutMillis: CONNECT_TIMEOUT_MS })
      // Without a listener, a connection that breaks while idle would end the process.
      client.on('error', () => {})
      try {
        await client.connect()
        await inspect(client)
        return client
      } catch (error) {
        await client.end().catch(() => {})
        throw error
      }
    })
  }

  /** Tries server after server, beginning with the believed primary, each of them once. */
  async tryEach<T>(attempt: () => Promise<T>): Promise<T> {
    for (let tries = 1; ; tries++) {
      const { url } = this
      try {
        return await attempt()
      } catch (error) {
        if (!isConnectionLoss(error)) throw error
        this.leave(url)
        if (tries >= this.count) throw error
      }
    }
  }
}
