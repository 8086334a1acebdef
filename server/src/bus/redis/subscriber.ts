import { EmbeddedBus } from '../embedded.ts'
import type { Bus, News, Topic } from '../port.ts'
import type { RedisLink } from './link.ts'

/**
 * Adds the wake-ups that routers send over Redis to those of another bus. It needs one subscription for each shard,
 * however many jobs there are.
 */
export class RedisBus implements Bus {
  readonly #inner: Bus
  readonly #link: RedisLink
  readonly #heard = new EmbeddedBus()

  /** The link belongs to the bus. */
  constructor(inner: Bus, link: RedisLink) {
    this.#inner = inner
    this.#link = link
    const channels = link.keys.shards.map((shard) => link.keys.channel(shard))
    link.listen(
      channels,
      (message) => this.#hear(message),
      () => this.#heard.wakeAll(),
    )
  }

  wake(topics: readonly Topic[], news?: News): void {
    this.#inner.wake(topics, news)
  }

  subscribe(topic: Topic, callback: (news?: News) => void): () => void {
    const end = this.#inner.subscribe(topic, callback)
    // Redis carries wake-ups of jobs only.
    if (!topic.startsWith('job:')) return end
    const endHeard = this.#heard.subscribe(topic, callback)
    return () => {
      end()
      endHeard()
    }
  }

  async close(): Promise<void> {
    this.#link.close()
    await this.#heard.close()
    await this.#inner.close()
  }

  #hear(message: string): void {
    for (const [jobId, cursor] of highestOf(message)) this.#heard.wake([`job:${jobId}`], { cursor })
  }
}

/** Each line is: job, blank, cursor. */
function highestOf(message: string): Map<string, number> {
  const highest = new Map<string, number>()
  for (const line of message.split('\n')) {
    const [jobId = '', cursor] = line.split(' ')
    highest.set(jobId, Math.max(highest.get(jobId) ?? 0, Number(cursor)))
  }
  return highest
}
