import { sleep, type World } from '@ichido/sdk/world'
import type { EventName, StoredEvent } from '../../core/events/event.ts'
import type { Relay } from '../port.ts'
import { eventWriter } from './event-json.ts'
import type { Keys } from './keys.ts'
import { type RedisLink, Script, type ScriptCall } from './link.ts'
import { Room, type RoomMeter } from './room.ts'
import { type SkipMeter, Skips } from './streams.ts'

export interface Ttls {
  stateMs: number
  markMs: number
}

interface RelayMeter extends RoomMeter, SkipMeter {
  /**
   * Counts events that this node added to their streams, found there, left to the leader, swept as the leader, or
   * skipped because their stream is not ours.
   */
  relayed(outcome: 'added' | 'repeated' | 'left' | 'swept' | 'skipped', count: number): void
}

interface RedisRelayOptions {
  world: World
  link: RedisLink
  /** Names the store that these events belong to. */
  owner: string
  ttls(): Ttls
  meter: RelayMeter
  onTrouble(error: unknown): void
}

/** The values of S4. */
const STREAM_LENGTH = 10_000
const STREAM_IDLE_MS = 24 * 3_600_000
/** Events of one script. Redis serves no other client while it runs. */
const SCRIPT_EVENTS_MAX = 100
/** Marks that one MGET reads. */
const MARKS_MAX = 1_000
const BATCH_MAX = 1_000
const QUEUE_MAX = 20_000
const QUEUE_BYTES_MAX = 32 * 1024 * 1024
/** Relayed transactions that are remembered. A leader asks for them within seconds. */
const TAKEN_MAX = 10_000
/** How long `close()` waits for the last events. */
const LAST_FLUSH_MS = 500

/** The answers of `publish.lua` for an event. */
const ADDED = 1
const REPEATED = 0
const SKIPPED = -1
const OUTCOMES = [ADDED, REPEATED, SKIPPED] as const
type Outcome = (typeof OUTCOMES)[number]

/** The mark of versions that did not name the owner. */
const UNNAMED = '1'
const ANOTHER =
  'This Redis is in use by another Ichido under the same names, and each may take events of the other. Set REDIS_PREFIX, or empty ' +
  'this Redis if the other is gone.'

interface Transaction {
  tx: number | null
  events: readonly StoredEvent[]
  bytes: number
}

/** Takes committed events to Redis, in their order. The leader sweeps the events that it could not take in time. */
export class RedisRelay implements Relay {
  readonly #options: RedisRelayOptions
  readonly #script = new Script('publish.lua')
  readonly #room: Room
  readonly #skips: Skips
  readonly #taken = new Set<number>()
  /** Counts how often Redis may have lost something. */
  #losses = 0
  readonly #queue: Transaction[] = []
  readonly #queued = { events: 0, bytes: 0 }
  #flushing: Promise<void> | null = null

  constructor(options: RedisRelayOptions) {
    this.#options = options
    this.#room = new Room(options)
    this.#skips = new Skips(options)
    // A killed Redis may restart without the data of its last second.
    options.link.onConnect(() => this.forget())
  }

  stored(tx: number | null, events: readonly StoredEvent[]): void {
    if (events.length === 0) return
    if (this.#queued.events >= QUEUE_MAX || this.#queued.bytes >= QUEUE_BYTES_MAX) {
      this.#options.meter.relayed('left', events.length)
      return
    }
    const bytes = events.reduce((sum, { data }) => sum + data.length, 0)
    this.#queue.push({ tx, events, bytes })
    this.#queued.events += events.length
    this.#queued.bytes += bytes
    this.#flushing ??= this.#flush()
  }

  taken(from: number, to: number): number[] {
    return [...this.#taken].filter((tx) => tx >= from && tx < to).sort((a, b) => a - b)
  }

  forget(): void {
    this.#losses++
    this.#taken.clear()
  }

  /** Publishes events as S4 does. An event's answer is true if it was added, false if it was there before. */
  async publish(events: readonly StoredEvent[]): Promise<boolean[]> {
    const { ttls, meter } = this.#options
    const found = await this.#publish(events, () => ttls().stateMs)
    const count = (outcome: Outcome) => found.filter((one) => one === outcome).length
    meter.relayed('added', count(ADDED))
    meter.relayed('repeated', count(REPEATED))
    return found.map((outcome) => outcome === ADDED)
  }

  async missing<Name extends EventName>(names: readonly Name[]): Promise<Name[]> {
    const { link } = this.#options
    const missing = new Set(names)
    await Promise.all(
      grouped(link.keys, names, (shard) => String(shard)).flatMap(([, part]) =>
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
    // Where a newer state has expired, an older event must not become the state.
    const stateMsOf = ({ createdAtMs }: StoredEvent) => Math.max(0, createdAtMs + ttls().stateMs - nowMs)
    const found = await this.#publish(events, stateMsOf)
    meter.relayed('swept', found.filter((outcome) => outcome === ADDED).length)
  }

  async look(): Promise<'ready' | 'emptied' | 'full' | 'away'> {
    const { link, owner, onTrouble } = this.#options
    // The key is read, so that a Redis that evicts counts it as used and drops other keys first.
    const read = (shard: number) => link.call((redis) => redis.mGet([link.keys.memory(shard)]))
    try {
      const found = (await Promise.all(link.keys.shards.map(read))).flat()
      if (found.some((name) => name !== null && name !== owner && name !== UNNAMED)) onTrouble(new Error(ANOTHER))
      if (await this.#room.isFull()) return 'full'
      return found.includes(null) ? 'emptied' : 'ready'
    } catch {
      return 'away'
    }
  }

  evicts(): Promise<boolean> {
    return this.#room.evicts()
  }

  async remember(): Promise<void> {
    const { link, owner } = this.#options
    const write = (shard: number) => link.call((redis) => redis.set(link.keys.memory(shard), owner))
    await this.#room.write(Promise.all(link.keys.shards.map(write)))
  }

  /** Events that are left are swept by the leader. */
  async close(): Promise<void> {
    const done = new AbortController()
    await Promise.race([this.#flushing, sleep(this.#options.world, LAST_FLUSH_MS, done.signal)])
    done.abort()
  }

  async #flush(): Promise<void> {
    // Waits two turns: events that are committed in this moment join the batch, and the store's next batch, which
    // callers wait for, goes first.
    for (let turn = 0; turn < 2; turn++) await new Promise<void>((resolve) => this.#options.world.soon(resolve))
    while (this.#queue.length > 0) await this.#take(this.#next())
    this.#flushing = null
  }

  async #take(batch: readonly Transaction[]): Promise<void> {
    const losses = this.#losses
    const events = batch.flatMap((each) => each.events)
    let left = events.length
    try {
      if (await this.#room.isFull()) return this.#options.meter.relayed('left', left)
      for (const part of inParts(events, BATCH_MAX)) {
        await this.publish(part)
        left -= part.length
      }
      if (losses === this.#losses) this.#noteTaken(batch)
    } catch {
      this.#options.meter.relayed('left', left)
    }
  }

  /** Takes whole transactions until there are enough events. */
  #next(): Transaction[] {
    const batch: Transaction[] = []
    for (let count = 0, next = this.#queue[0]; count < BATCH_MAX && next !== undefined; next = this.#queue[0]) {
      this.#queue.shift()
      batch.push(next)
      count += next.events.length
      this.#queued.events -= next.events.length
      this.#queued.bytes -= next.bytes
    }
    return batch
  }

  #noteTaken(batch: readonly Transaction[]): void {
    for (const { tx } of batch) if (tx !== null) this.#taken.add(tx)
    for (const tx of this.#taken) {
      if (this.#taken.size <= TAKEN_MAX) break
      this.#taken.delete(tx)
    }
  }

  async #publish(events: readonly StoredEvent[], stateMsOf: (event: StoredEvent) => number): Promise<Outcome[]> {
    const outcomes = new Map<StoredEvent, Outcome>()
    const { keys } = this.#options.link
    const parts = grouped(keys, events, (shard, { domain }) => `${shard} ${domain}`).flatMap(([shard, part]) =>
      inParts(part, SCRIPT_EVENTS_MAX).map((some) => [shard, some] as const),
    )
    await Promise.all(
      parts.map(async ([shard, part]) => {
        const found = await this.#add(shard, part, stateMsOf)
        for (const [i, event] of part.entries()) outcomes.set(event, found[i] ?? SKIPPED)
      }),
    )
    const found = events.map((event) => outcomes.get(event) ?? SKIPPED)
    this.#options.meter.relayed('skipped', found.filter((outcome) => outcome === SKIPPED).length)
    return found
  }

  async #add(shard: number, events: readonly StoredEvent[], stateMsOf: (event: StoredEvent) => number) {
    const { world, link, ttls } = this.#options
    const call = publishCall(link.keys, shard, events, { nowMs: world.now(), markMs: ttls().markMs, stateMsOf })
    const answer = await this.#room.write(this.#script.run(link, call))
    const found: unknown[] = Array.isArray(answer) ? answer : []
    this.#skips.note(found.slice(events.length))
    return found.slice(0, events.length).map((one) => OUTCOMES.find((outcome) => outcome === one) ?? SKIPPED)
  }
}

/** Makes the call of `publish.lua` for events of one shard and domain. */
export function publishCall(
  keys: Keys,
  shard: number,
  events: readonly StoredEvent[],
  { nowMs, markMs, stateMsOf }: { nowMs: number; markMs: number; stateMsOf(event: StoredEvent): number },
): ScriptCall {
  const domain = events[0]?.domain ?? ''
  /** For each job the index of its highest cursor. */
  const last = new Map<string, number>()
  for (const [i, { jobId, n }] of events.entries()) {
    const found = last.get(jobId)
    if (found === undefined || n > (events[found]?.n ?? 0)) last.set(jobId, i)
  }
  const states = Array.from(last, ([jobId, i]): [string, string[]] => {
    const event = events[i]
    if (event === undefined) throw new RangeError(`There is no event ${i}`)
    return [keys.state(domain, jobId), [i + 1, event.n, Math.floor(stateMsOf(event))].map(String)]
  })
  return {
    keys: [
      keys.stream(domain, shard),
      keys.domains(shard),
      ...states.map(([key]) => key),
      ...events.map((event) => keys.published(event)),
    ],
    arguments: [
      ...[domain, nowMs, markMs, STREAM_IDLE_MS, STREAM_LENGTH, states.length].map(String),
      ...states.flatMap(([, values]) => values),
      ...events.map(eventWriter()),
    ],
  }
}

/** Groups names with their shard, in their order. Many names belong to the same few jobs. */
function grouped<Name extends EventName>(
  keys: Keys,
  names: readonly Name[],
  groupOf: (shard: number, name: Name) => string,
): [number, Name[]][] {
  const shards = new Map<string, number>()
  const groups = new Map<string, [number, Name[]]>()
  for (const name of names) {
    const shard = shards.get(name.jobId) ?? keys.shardOf(name.jobId)
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
