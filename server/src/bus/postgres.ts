import { sleep, type World } from '@ichido/sdk/world'
import type pg from 'pg'
import { EmbeddedBus } from './embedded.ts'
import type { Bus, News, Topic } from './port.ts'

export interface PostgresBusOptions {
  world: World
  /**
   * Opens a connection for the bus alone: NOTIFY inside the transactions of commands takes a lock that all commits
   * share.
   */
  connect(): Promise<pg.Client>
  /** False if a pooler is in between: then the bus can notify, but not listen. Default: always true. */
  canListen?(client: pg.Client): Promise<boolean>
  schema: string
  onTrouble?(error: unknown): void
}

/** PostgreSQL allows 8,000 bytes in a notification. */
const PAYLOAD_MAX = 7_900
/** More wake-ups than this are dropped while there is no connection: polling finds the work. */
const PENDING_MAX = 10_000
const RECONNECT_MS = 500
/** The pause between notifications, because each of them wakes every node. The first is sent at once. */
const PAUSE_MS = 20
/** How long `close()` waits for the last wake-ups, which it sends without pauses. */
export const LAST_FLUSH_MS = 500
/**
 * Wake-ups of single jobs, thousands a second, are sent after the few wake-ups of queues that idle workers wait for.
 */
const isOfOneJob = (topic: Topic) => topic.startsWith('job:') || topic.startsWith('logs:')

/**
 * A wake-up may be lost, so its commit does not wait for the disk. The setting ends with the statement's transaction.
 */
const NOTIFY = `SELECT set_config('synchronous_commit', 'off', true), pg_notify($1, $2)`

export function channelOf(schema: string): string {
  return `ichido_wake_${schema}`
}

/**
 * Carries wake-ups between nodes by LISTEN/NOTIFY, many in one notification. Inside the process they are delivered
 * directly.
 */
export class PostgresBus implements Bus {
  readonly #local = new EmbeddedBus()
  readonly #options: PostgresBusOptions
  readonly #soon = new Set<Topic>()
  readonly #later = new Set<Topic>()
  readonly #closing = new AbortController()
  /** The first line of every notification that this bus sends. */
  readonly #sender: string
  #client: pg.Client | null = null
  #flushing: Promise<void> | null = null
  #closed = false
  readonly #running: Promise<void>

  constructor(options: PostgresBusOptions) {
    this.#options = options
    this.#sender = `from:${options.world.uuid()}`
    this.#running = this.#keepListening()
  }

  wake(topics: readonly Topic[], news?: News): void {
    this.#local.wake(topics, news)
    for (const topic of topics) {
      const pending = isOfOneJob(topic) ? this.#later : this.#soon
      if (pending.size < PENDING_MAX) pending.add(topic)
    }
    this.#flush()
  }

  subscribe(topic: Topic, callback: (news?: News) => void): () => void {
    return this.#local.subscribe(topic, callback)
  }

  async close(): Promise<void> {
    this.#closing.abort()
    const flushed = new AbortController()
    await Promise.race([this.#flushing, sleep(this.#options.world, LAST_FLUSH_MS, flushed.signal)])
    flushed.abort()
    this.#closed = true
    await this.#client?.end().catch(() => {})
    await this.#running
    await this.#local.close()
  }

  #flush(): void {
    if (this.#flushing === null && this.#hasMore() && this.#client !== null) this.#flushing = this.#notify()
  }

  #hasMore(): boolean {
    return this.#soon.size + this.#later.size > 0 && !this.#closed
  }

  /** Called only when there is something to send, so it cannot end before `#flushing` is set. */
  async #notify(): Promise<void> {
    try {
      while (this.#hasMore() && this.#client !== null) {
        await this.#client.query(NOTIFY, [channelOf(this.#options.schema), this.#nextPayload()])
        await sleep(this.#options.world, PAUSE_MS, this.#closing.signal)
      }
    } catch (error) {
      // Polling finds what is lost here. `#listen` notices the broken connection.
      if (!this.#closed) this.#options.onTrouble?.(error)
    } finally {
      this.#flushing = null
    }
  }

  #nextPayload(): string {
    const lines = [this.#sender]
    let size = this.#sender.length + 1
    for (const pending of [this.#soon, this.#later]) {
      for (const topic of pending) {
        size += Buffer.byteLength(topic) + 1
        if (size > PAYLOAD_MAX && lines.length > 1) return lines.join('\n')
        lines.push(topic)
        pending.delete(topic)
      }
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

  /** Settles when the connection has ended. */
  async #listen(client: pg.Client): Promise<void> {
    try {
      const broken = new Promise<void>((resolve, reject) => {
        client.on('error', reject)
        client.on('end', resolve)
      })
      client.on('notification', ({ payload }) => this.#hear(payload))
      await Promise.race([broken, this.#beginListening(client)])
      if (this.#closing.signal.aborted) return
      this.#client = client
      // Wake-ups may have been missed.
      this.#local.wakeAll()
      this.#flush()
      await broken
    } finally {
      this.#client = null
      await client.end().catch(() => {})
    }
  }

  async #beginListening(client: pg.Client): Promise<void> {
    const { schema, canListen } = this.#options
    if ((await canListen?.(client)) !== false) await client.query(`LISTEN ${channelOf(schema)}`)
  }

  /** Wake-ups of this bus were delivered here before they were sent. */
  #hear(payload = ''): void {
    const lines = payload.split('\n')
    if (lines[0] !== this.#sender) this.#local.wake(lines as Topic[])
  }
}
