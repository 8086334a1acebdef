import { sleep, type World } from '@ichido/sdk/world'
import type { EventName, StoredEvent } from '../../core/event.ts'
import type { Relay } from '../port.ts'
import { eventJson } from './event-json.ts'
import { SHARD_NUMBERS, shardOf } from './keys.ts'
import type { RedisLink } from './link.ts'
import { Script } from './script.ts'

export interface Ttls {
  stateMs: number
  markMs: number
}

export interface RelayMeter {
  /** Events that this node added to their streams, found there, left to the leader's sweep, or swept as the leader. */
  relayed(outcome: 'added' | 'repeated' | 'left' | 'swept', count: number): void
}

export interface RedisRelayOptions {
  world: World
  link: RedisLink
  ttls(): Ttls
  meter: RelayMeter
}

/** As S4 has it. */
const STREAM_LENGTH = 10_000
const STREAM_IDLE_MS = 24 * 3_600_000
/** Of one script: nobody else is served while it runs. */
const SCRIPT_EVENTS_MAX = 100
/** Asked for at once. */
const MARKS_MAX = 1_000
const BATCH_MAX = 1_000
const QUEUE_MAX = 20_000
const QUEUE_BYTES_MAX = 32 * 1024 * 1024
/** How long closing waits for the last events to go. */
const LAST_FLUSH_MS = 500

/** Takes committed events to Redis, in the order in which they came. What it cannot take in time the leader sweeps. */
export class RedisRelay implements Relay {
  readonly #options: RedisRelayOptions
  readonly #script = new Script('publish.lua')
  #queue: StoredEvent[] = []
  #queuedBytes = 0
  #flushing: Promise<void> | null = null

  constructor(options: RedisRelayOptions) {
    this.#options = options
  }

  stored(events: readonly StoredEvent[]): void {
    let left = 0
    for (const event of events) {
      if (this.#queue.length >= QUEUE_MAX || this.#queuedBytes >= QUEUE_BYTES_MAX) left++
      else {
        this.#queue.push(event)
        this.#queuedBytes += event.data.length
      }
    }
    if (left > 0) this.#options.meter.relayed('left', left)
    if (this.#queue.length > 0) this.#flushing ??= this.#flush()
  }

  /** S4's publish, of many: true for those that were added, false for those that had been before. */
  async publish(events: readonly StoredEvent[]): Promise<boolean[]> {
    const { ttls, meter } = this.#options
    const added = await this.#publish(events, () => ttls().stateMs)
    const count = added.filter(Boolean).length
    meter.relayed('added', count)
    meter.relayed('repeated', added.length - count)
    return added
  }

  async missing<Name extends EventName>(names: readonly Name[]): Promise<Name[]> {
    const { link } = this.#options
    const missing = new Set(names)
    await Promise.all(
      grouped(names, (shard) => String(shard)).flatMap(([, part]) =>
        inParts(part, MARKS_MAX).map(async (some) => {
          const marks = await link.call((redis) => redis.mGet(some.map((name) => link.keys.published(name))))
          for (const [i, name] of some.entries()) if (marks[i] != null) missing.delete(name)
        }),
      ),
    )
    return [...missing]
  }

  async sweep(events: readonly StoredEvent[], nowMs: number): Promise<void> {
    const { ttls, meter } = this.#options
    // Where a newer state has expired, an older one has, too: an old event must not be taken for the latest.
    const stateMsOf = ({ createdAtMs }: StoredEvent) => Math.max(0, createdAtMs + ttls().stateMs - nowMs)
    const added = await this.#publish(events, stateMsOf)
    meter.relayed('swept', added.filter(Boolean).length)
  }

  async look(): Promise<'ready' | 'emptied' | 'away'> {
    const { link } = this.#options
    const exists = (shard: number) => link.call((redis) => redis.exists(link.keys.memory(shard)))
    return Promise.all(SHARD_NUMBERS.map(exists)).then(
      (found) => (found.includes(0) ? 'emptied' : 'ready'),
      () => 'away',
    )
  }

  async remember(): Promise<void> {
    const { link } = this.#options
    await Promise.all(SHARD_NUMBERS.map((shard) => link.call((redis) => redis.set(link.keys.memory(shard), '1'))))
  }

  /** What cannot be taken any more is left to the leader. */
  async close(): Promise<void> {
    const done = new AbortController()
    await Promise.race([this.#flushing, sleep(this.#options.world, LAST_FLUSH_MS, done.signal)])
    done.abort()
  }

  async #flush(): Promise<void> {
    // Those that are committed in this same moment go along. And the store's next batch goes before: somebody waits for it.
    for (let turn = 0; turn < 2; turn++) await new Promise<void>((resolve) => this.#options.world.soon(resolve))
    while (this.#queue.length > 0) {
      const batch = this.#queue.slice(0, BATCH_MAX)
      this.#queue = this.#queue.slice(BATCH_MAX)
      this.#queuedBytes = this.#queue.length === 0 ? 0 : this.#queuedBytes - bytesOf(batch)
      await this.publish(batch).catch(() => this.#options.meter.relayed('left', batch.length))
    }
    this.#flushing = null
  }

  async #publish(events: readonly StoredEvent[], stateMsOf: (event: StoredEvent) => number): Promise<boolean[]> {
    const added = new Map<StoredEvent, boolean>()
    const parts = grouped(events, (shard, { domain }) => `${shard} ${domain}`).flatMap(([shard, part]) =>
      inParts(part, SCRIPT_EVENTS_MAX).map((some) => [shard, some] as const),
    )
    await Promise.all(
      parts.map(async ([shard, part]) => {
        const found = await this.#add(shard, part, stateMsOf)
        for (const [i, event] of part.entries()) added.set(event, found[i] === 1)
      }),
    )
    return events.map((event) => added.get(event) === true)
  }

  async #add(shard: number, events: readonly StoredEvent[], stateMsOf: (event: StoredEvent) => number) {
    const { world, link, ttls } = this.#options
    const domain = events[0]?.domain ?? ''
    const keys = [link.keys.stream(domain, shard), link.keys.domains(shard)]
    const args = [domain, world.now(), ttls().markMs, STREAM_IDLE_MS, STREAM_LENGTH].map(String)
    for (const event of events) {
      keys.push(link.keys.state(domain, event.jobId), link.keys.published(event))
      args.push(eventJson(event), String(event.n), String(Math.floor(stateMsOf(event))))
    }
    const answer = await this.#script.run(link, keys, args)
    return Array.isArray(answer) ? answer : []
  }
}

const bytesOf = (events: readonly StoredEvent[]) => events.reduce((sum, { data }) => sum + data.length, 0)

/** With their shard, in their order. Many are of the same few jobs. */
function grouped<Name extends EventName>(
  names: readonly Name[],
  groupOf: (shard: number, name: Name) => string,
): [number, Name[]][] {
  const shards = new Map<string, number>()
  const groups = new Map<string, [number, Name[]]>()
  for (const name of names) {
    const shard = shards.get(name.jobId) ?? shardOf(name.jobId)
    shards.set(name.jobId, shard)
    const group = groups.get(groupOf(shard, name))
    if (group === undefined) groups.set(groupOf(shard, name), [shard, [name]])
    else group[1].push(name)
  }
  return [...groups.values()]
}

function inParts<T>(all: readonly T[], max: number): T[][] {
  return Array.from({ length: Math.ceil(all.length / max) }, (_, i) => all.slice(i * max, (i + 1) * max))
}
