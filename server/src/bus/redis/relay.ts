import { sleep, type World } from '@ichido/sdk/world'
import type { EventName, StoredEvent } from '../../core/events/event.ts'
import type { Relay } from '../port.ts'
import { eventWriter } from './event-json.ts'
import type { Keys } from './keys.ts'
import type { RedisLink } from './link.ts'
import { Room, type RoomMeter } from './room.ts'
import { Script, type ScriptCall } from './script.ts'
import { type SkipMeter, Skips } from './whose.ts'

export interface Ttls {
  stateMs: number
  markMs: number
}

export interface RelayMeter extends RoomMeter, SkipMeter {
  /**
   * Events that this node added to their streams, found there, left to the leader's sweep, swept as the leader, or skipped
   * because their stream is not ours.
   */
  relayed(outcome: 'added' | 'repeated' | 'left' | 'swept' | 'skipped', count: number): void
}

export interface RedisRelayOptions {
  world: World
  link: RedisLink
  /** Of the store whose events these are. */
  owner: string
  ttls(): Ttls
  meter: RelayMeter
  onTrouble(error: unknown): void
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
/** Transactions that are known to be taken. A node that leads asks within seconds. */
const TAKEN_MAX = 10_000
/** How long closing waits for the last events to go. */
const LAST_FLUSH_MS = 500

/** As `publish.lua` answers for an event. */
const ADDED = 1
const REPEATED = 0
const SKIPPED = -1
const OUTCOMES = [ADDED, REPEATED, SKIPPED] as const
type Outcome = (typeof OUTCOMES)[number]

/** As versions before owners were named have marked it. */
const UNNAMED = '1'
const ANOTHER =
  'This Redis is in use by another Ichido under the same names, and each may take events of the other. Set REDIS_PREFIX, or empty ' +
  'this Redis if the other is gone.'

interface Transaction {
  tx: number | null
  events: readonly StoredEvent[]
  bytes: number
}

/** Takes committed events to Redis, in the order in which they came. What it cannot take in time the leader sweeps. */
export class RedisRelay implements Relay {
  readonly #options: RedisRelayOptions
  readonly #script = new Script('publish.lua')
  readonly #room: Room
  readonly #skips: Skips
  readonly #taken = new Set<number>()
  /** How often Redis may have lost something. */
  #losses = 0
  readonly #queue: Transaction[] = []
  readonly #queued = { events: 0, bytes: 0 }
  #flushing: Promise<void> | null = null

  constructor(options: RedisRelayOptions) {
    this.#options = options
    this.#room = new Room(options)
    this.#skips = new Skips(options)
    // A Redis that was killed may come back without the last second of what it had been given.
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

  /** S4's publish, of many: true for those that were added, false for those that had been before. */
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
    // Where a newer state has expired, an older one has, too: an old event must not be taken for the latest.
    const stateMsOf = ({ createdAtMs }: StoredEvent) => Math.max(0, createdAtMs + ttls().stateMs - nowMs)
    const found = await this.#publish(events, stateMsOf)
    meter.relayed('swept', found.filter((outcome) => outcome === ADDED).length)
  }

  async look(): Promise<'ready' | 'emptied' | 'full' | 'away'> {
    const { link, owner, onTrouble } = this.#options
    // It is read, not only looked for: a Redis that evicts then takes it for used, and drops others first.
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

  /** What cannot be taken any more is left to the leader. */
  async close(): Promise<void> {
    const done = new AbortController()
    await Promise.race([this.#flushing, sleep(this.#options.world, LAST_FLUSH_MS, done.signal)])
    done.abort()
  }

  async #flush(): Promise<void> {
    // Those that are committed in this same moment go along. And the store's next batch goes before: somebody waits for it.
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

  /** Whole transactions, until there are enough events. */
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

/** What `publish.lua` is to do with events of one shard and domain. */
export function publishCall(
  keys: Keys,
  shard: number,
  events: readonly StoredEvent[],
  { nowMs, markMs, stateMsOf }: { nowMs: number; markMs: number; stateMsOf(event: StoredEvent): number },
): ScriptCall {
  const domain = events[0]?.domain ?? ''
  /** Of each job the place of its highest cursor. */
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

/** With their shard, in their order. Many are of the same few jobs. */
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
