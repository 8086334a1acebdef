import { sleep, type World } from '@ichido/sdk/world'
import type pg from 'pg'
import { EmbeddedBus } from './embedded.ts'
import type { Bus, Topic } from './port.ts'

export interface PostgresBusOptions {
  world: World
  /** Makes a connection of the bus's own: NOTIFY inside the work's transactions takes a lock that all commits share. */
  connect(): Promise<pg.Client>
  schema: string
  onTrouble?(error: unknown): void
}

/** PostgreSQL allows 8,000 bytes in a notification. */
const PAYLOAD_MAX = 7_900
const RECONNECT_MS = 500

export function channelOf(schema: string): string {
  return `ichido_wake_${schema}`
}

/** Wake-ups between nodes by LISTEN/NOTIFY, many in one notification; inside the process they do not take the detour. */
export class PostgresBus implements Bus {
  readonly #local = new EmbeddedBus()
  readonly #options: PostgresBusOptions
  readonly #pending = new Set<Topic>()
  readonly #closing = new AbortController()
  #client: pg.Client | null = null
  #flushing = false
  readonly #running: Promise<void>

  constructor(options: PostgresBusOptions) {
    this.#options = options
    this.#running = this.#keepListening()
  }

  wake(topics: readonly Topic[]): void {
    this.#local.wake(topics)
    for (const topic of topics) this.#pending.add(topic)
    if (!this.#flushing) void this.#flush()
  }

  subscribe(topic: Topic, callback: () => void): () => void {
    return this.#local.subscribe(topic, callback)
  }

  async close(): Promise<void> {
    this.#closing.abort()
    await this.#client?.end().catch(() => {})
    await this.#running
    await this.#local.close()
  }

  async #flush(): Promise<void> {
    this.#flushing = true
    try {
      while (this.#pending.size > 0 && this.#client !== null) {
        await this.#client.query('SELECT pg_notify($1, $2)', [channelOf(this.#options.schema), this.#nextPayload()])
      }
    } catch (error) {
      // What is lost here is found by polling; the listener notices the broken connection by itself.
      this.#options.onTrouble?.(error)
    } finally {
      this.#flushing = false
    }
  }

  #nextPayload(): string {
    const lines: string[] = []
    let size = 0
    for (const topic of this.#pending) {
      size += Buffer.byteLength(topic) + 1
      if (size > PAYLOAD_MAX && lines.length > 0) break
      lines.push(topic)
      this.#pending.delete(topic)
    }
    return lines.join('\n')
  }

  async #keepListening(): Promise<void> {
    const { signal } = this.#closing
    while (!signal.aborted) {
      try {
        const client = await this.#options.connect()
        const broken = new Promise<void>((resolve) => {
          client.on('error', () => resolve())
          client.on('end', () => resolve())
        })
        client.on('notification', ({ payload }) => this.#local.wake((payload ?? '').split('\n') as Topic[]))
        await client.query(`LISTEN ${channelOf(this.#options.schema)}`)
        if (signal.aborted) return void (await client.end().catch(() => {}))
        this.#client = client
        this.#local.wakeAll()
        void this.#flush()
        await broken
        this.#client = null
        await client.end().catch(() => {})
      } catch (error) {
        this.#options.onTrouble?.(error)
      }
      await sleep(this.#options.world, RECONNECT_MS, signal)
    }
  }
}
