import { sleep, type World } from '@ichido/sdk/world'
import type pg from 'pg'
import { EmbeddedBus } from './embedded.ts'
import type { Bus, News, Topic } from './port.ts'

export interface PostgresBusOptions {
  world: World
  /** Makes a connection of the bus's own: NOTIFY inside the work's transactions takes a lock that all commits share. */
  connect(): Promise<pg.Client>
  schema: string
  onTrouble?(error: unknown): void
}

/** PostgreSQL allows 8,000 bytes in a notification. */
const PAYLOAD_MAX = 7_900
/** Beyond it, while there is no connection, wake-ups are dropped: polling finds what they were about. */
const PENDING_MAX = 10_000
const RECONNECT_MS = 500
/** Between notifications: each wakes every node, whatever it is about. The first of many goes out at once. */
const PAUSE_MS = 20
/** How long closing waits for the last wake-ups to go out. */
const LAST_FLUSH_MS = 500

export function channelOf(schema: string): string {
  return `ichido_wake_${schema}`
}

/** Wake-ups between nodes by LISTEN/NOTIFY, many in one notification; inside the process they do not take the detour. */
export class PostgresBus implements Bus {
  readonly #local = new EmbeddedBus()
  readonly #options: PostgresBusOptions
  readonly #pending = new Set<Topic>()
  readonly #closing = new AbortController()
  /** The first line of what this bus sends. */
  readonly #sender: string
  #client: pg.Client | null = null
  #flushing: Promise<void> | null = null
  readonly #running: Promise<void>

  constructor(options: PostgresBusOptions) {
    this.#options = options
    this.#sender = `from:${options.world.uuid()}`
    this.#running = this.#keepListening()
  }

  wake(topics: readonly Topic[], news?: News): void {
    this.#local.wake(topics, news)
    for (const topic of topics) if (this.#pending.size < PENDING_MAX) this.#pending.add(topic)
    this.#flush()
  }

  subscribe(topic: Topic, callback: (news?: News) => void): () => void {
    return this.#local.subscribe(topic, callback)
  }

  async close(): Promise<void> {
    await Promise.race([this.#flushing, sleep(this.#options.world, LAST_FLUSH_MS, this.#closing.signal)])
    this.#closing.abort()
    await this.#client?.end().catch(() => {})
    await this.#running
    await this.#local.close()
  }

  #flush(): void {
    if (this.#flushing === null && this.#pending.size > 0 && this.#client !== null) this.#flushing = this.#notify()
  }

  /** Has something to send when it is called, so that it ends only after its promise was kept. */
  async #notify(): Promise<void> {
    try {
      while (this.#pending.size > 0 && this.#client !== null) {
        await this.#client.query('SELECT pg_notify($1, $2)', [channelOf(this.#options.schema), this.#nextPayload()])
        await sleep(this.#options.world, PAUSE_MS, this.#closing.signal)
      }
    } catch (error) {
      // What is lost here is found by polling; the listener notices the broken connection by itself.
      this.#options.onTrouble?.(error)
    } finally {
      this.#flushing = null
    }
  }

  #nextPayload(): string {
    const lines = [this.#sender]
    let size = this.#sender.length + 1
    for (const topic of this.#pending) {
      size += Buffer.byteLength(topic) + 1
      if (size > PAYLOAD_MAX && lines.length > 1) break
      lines.push(topic)
      this.#pending.delete(topic)
    }
    return lines.join('\n')
  }

  async #keepListening(): Promise<void> {
    const { signal } = this.#closing
    while (!signal.aborted) {
      try {
        await this.#listen(await this.#options.connect())
      } catch (error) {
        this.#options.onTrouble?.(error)
      }
      await sleep(this.#options.world, RECONNECT_MS, signal)
    }
  }

  /** Settles when the connection is no more. */
  async #listen(client: pg.Client): Promise<void> {
    try {
      const broken = new Promise<void>((resolve, reject) => {
        client.on('error', reject)
        client.on('end', resolve)
      })
      client.on('notification', ({ payload }) => this.#hear(payload))
      // A wake-up may be lost: no commit of one waits for the disk, as it would by default.
      await Promise.race([broken, client.query('SET synchronous_commit = off')])
      await Promise.race([broken, client.query(`LISTEN ${channelOf(this.#options.schema)}`)])
      if (this.#closing.signal.aborted) return
      this.#client = client
      // Something may have been missed.
      this.#local.wakeAll()
      this.#flush()
      await broken
    } finally {
      this.#client = null
      await client.end().catch(() => {})
    }
  }

  /** What this bus has said itself was heard here before it went out. */
  #hear(payload = ''): void {
    const lines = payload.split('\n')
    if (lines[0] !== this.#sender) this.#local.wake(lines as Topic[])
  }
}
