import pg from 'pg'
import { serverUrls } from '../../../core/node/addresses.ts'
import { isConnectionLoss } from './errors.ts'
import { inspect } from './inspect.ts'

export const CONNECT_TIMEOUT_MS = 5_000

/** The servers that an address names, and the one that is believed to be the primary. All pools of a store share it. */
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
