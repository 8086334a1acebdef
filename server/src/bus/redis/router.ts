import { sleep, type World } from '@ichido/sdk/world'
import type { StoredEvent } from '../../core/events/event.ts'
import { type Entry, eventWriter, readEventJson } from './event-json.ts'
import { GROUP, isDomain } from './keys.ts'
import { DEADLINE_MS, isReply, type RedisLink, RedisUnavailable, Script } from './link.ts'
import type { Ttls } from './relay.ts'
import { holdsEvents, type Ingest, ingestInOrder, type SkipMeter, Skips } from './streams.ts'

interface RouterMeter extends SkipMeter {
  /** Counts entries that this node has routed: new entries, or entries that another router had routed before. */
  routed(outcome: 'new' | 'repeated', count: number): void
}

export interface RouterOptions {
  world: World
  /** Opens a connection for one shard: a blocking read keeps all other commands waiting. */
  connect(): RedisLink
  ttls(): Ttls
  meter: RouterMeter
  /** Stores events that other programs put into the streams. */
  ingest: Ingest
  onTrouble(error: unknown): void
  /** An entry that was not acknowledged for this long goes to another router. */
  reclaimAfterMs?: number
}

/** Entries of one script. Redis serves no other client while it runs. */
const READ_MAX = 100
/** A new domain is also noticed within this time. */
const BLOCK_MS = 1_000
const RECLAIM_AFTER_MS = 15_000
const RETRY_MS = 500
/** A consumer that is idle for this long and has no entries belongs to a process that has ended. */
const CONSUMER_IDLE_MS = 3_600_000
const NOTED_MS = 10_000
const DOMAIN_IDLE_MS = 24 * 3_600_000
/** The most recently used domains of a shard. One command reads all their streams. */
const DOMAINS_MAX = 1_000

/** The router of S4: takes events from the streams to the states and the gateways. Several nodes share the work. */
export class Router {
  readonly #options: RouterOptions
  readonly #closing = new AbortController()
  readonly #shards: RouterShard[]
  readonly #running: Promise<unknown>

  constructor(options: RouterOptions) {
    this.#options = options
    const script = new Script('route.lua')
    const consumer = options.world.uuid()
    const first = new RouterShard(0, consumer, script, options)
    const others = first.link.keys.shards.slice(1)
    this.#shards = [first, ...others.map((shard) => new RouterShard(shard, consumer, script, options))]
    this.#running = Promise.all(this.#shards.map((shard) => this.#keepRouting(shard)))
  }

  /** Entries that were not acknowledged go to another router after a while. */
  async close(): Promise<void> {
    this.#closing.abort()
    for (const shard of this.#shards) shard.link.close()
    await this.#running
  }

  async #keepRouting(shard: RouterShard): Promise<void> {
    const { world, onTrouble } = this.#options
    const { signal } = this.#closing
    let inTrouble = false
    while (!signal.aborted) {
      try {
        await shard.turn()
        inTrouble = false
      } catch (error) {
        if (signal.aborted) return
        // The link reports an unreachable Redis itself.
        if (!inTrouble && !(error instanceof RedisUnavailable)) onTrouble(error)
        inTrouble = true
        await sleep(world, RETRY_MS, signal)
      }
    }
  }
}

/** What `route.lua` gets for an entry. */
interface Told {
  event: Pick<StoredEvent, 'jobId' | 'domain' | 'n' | 'stage' | 'seq'>
  json: string
  /** How long the event is kept as the state of its job, in ms; 0: it is too old to be the state. */
  stateMs: number
}

class RouterShard {
  readonly link: RedisLink
  readonly #shard: number
  readonly #consumer: string
  readonly #script: Script
  readonly #options: RouterOptions
  readonly #skips: Skips
  #streams: string[] = []
  #lookAtMs = 0
  #reclaimAtMs = 0
  #scanned = '0'
  /** Streams that were found, and when they are looked at again, because Redis may have lost them. */
  readonly #noted = new Map<string, number>()

  constructor(shard: number, consumer: string, script: Script, options: RouterOptions) {
    this.#shard = shard
    this.#consumer = consumer
    this.#script = script
    this.#options = options
    this.#skips = new Skips(options)
    this.link = options.connect()
  }

  async turn(): Promise<void> {
    const { world } = this.#options
    if (world.monotonic() >= this.#lookAtMs) await this.#findStreams()
    if (this.#streams.length === 0) return sleep(world, BLOCK_MS / 5)
    if (world.monotonic() >= this.#reclaimAtMs) await this.#reclaim()
    for (const { name, messages } of await this.#read()) await this.#route(name, messages)
  }

  async #findStreams(): Promise<void> {
    const { world } = this.#options
    const { keys } = this.link
    if (this.#shard === 0) await this.#findForeign()
    const key = keys.domains(this.#shard)
    const domains = await this.link.call((redis) => redis.zRange(key, 0, DOMAINS_MAX - 1, { REV: true }))
    const streams = domains.filter(isDomain).map((domain) => keys.stream(domain, this.#shard))
    const known = new Set(this.#streams)
    const created = await this.#createGroups(streams.filter((stream) => !known.has(stream)))
    this.#streams = [...streams.filter((stream) => known.has(stream)), ...created]
    this.#lookAtMs = world.monotonic() + BLOCK_MS
  }

  /**
   * Other programs do not announce their streams, so each call scans a part of all keys. In a cluster another program
   * must use our names with their hash tags, and a domain that nodes use.
   */
  async #findForeign(): Promise<void> {
    const { world } = this.#options
    const { keys } = this.link
    const found = await this.link.scanStreams(this.#scanned)
    if (found === null) return
    this.#scanned = found.cursor
    const nowMs = world.monotonic()
    for (const [stream, untilMs] of this.#noted) if (untilMs <= nowMs) this.#noted.delete(stream)
    for (const stream of found.names) {
      const read = keys.readStream(stream)
      if (read === null || this.#noted.has(stream)) continue
      this.#noted.set(stream, nowMs + NOTED_MS)
      if (!(await holdsEvents(this.link, stream))) continue
      const domains = keys.domains(read.shard)
      const isKnown = (await this.link.call((redis) => redis.zScore(domains, read.domain))) !== null
      if (!isKnown && (await this.link.call((redis) => redis.zCard(domains))) >= DOMAINS_MAX) {
        this.#skips.note([stream], `is not read: more than ${DOMAINS_MAX} domains are in use`)
        continue
      }
      await this.link.call((redis) => redis.zAdd(domains, { score: world.now(), value: read.domain }))
    }
  }

  /**
   * Creates groups that read from the beginning: existing entries were not routed yet. Returns the names that are
   * streams.
   */
  async #createGroups(streams: readonly string[]): Promise<string[]> {
    const create = (stream: string) =>
      this.link.call((redis) => redis.xGroupCreate(stream, GROUP, '0', { MKSTREAM: true }))
    const skipped = new Set<string>()
    await Promise.all(
      streams.map((stream) =>
        create(stream).catch((error: unknown) => {
          if (isReply(error, 'WRONGTYPE')) skipped.add(stream)
          else if (!isReply(error, 'BUSYGROUP')) throw error
        }),
      ),
    )
    this.#skips.note([...skipped])
    return streams.filter((stream) => !skipped.has(stream))
  }

  async #read(): Promise<{ name: string; messages: Entry[] }[]> {
    const streams = this.#streams.map((key) => ({ key, id: '>' }))
    const options = { COUNT: READ_MAX, BLOCK: BLOCK_MS }
    try {
      const found = await this.link.call(
        (redis) => redis.xReadGroup(GROUP, this.#consumer, streams, options),
        BLOCK_MS + DEADLINE_MS,
      )
      const streamsFound: readonly { name: string; messages: readonly (Entry | null)[] }[] = found ?? []
      return streamsFound.map(({ name, messages }) => ({ name, messages: messages.filter((entry) => entry !== null) }))
    } catch (error) {
      // The streams were removed, by FLUSHALL or because they were idle. All their entries are new now.
      if (!['NOGROUP', 'UNBLOCKED', 'WRONGTYPE'].some((word) => isReply(error, word))) throw error
      this.#streams = await this.#createGroups(this.#streams)
      return []
    }
  }

  /** Routes our own events first: they are in the store already, even if it does not answer now. */
  async #route(stream: string, entries: readonly Entry[]): Promise<void> {
    const { ttls, world, ingest } = this.#options
    const { stateMs } = ttls()
    const nowMs = world.now()
    const own: Entry[] = []
    const told: Told[] = []
    for (const entry of entries) {
      const json = entry.message.data
      const event = readEventJson(json)
      // An event that names another domain would change keys of another stream.
      if (json === undefined || event === null || stream !== this.link.keys.stream(event.domain, this.#shard)) continue
      const leftMs = Math.min(stateMs, Math.max(0, event.timestampMs + stateMs - nowMs))
      own.push(entry)
      told.push({ event: { ...event, n: event.cursor }, json, stateMs: leftMs })
    }
    await this.#tell(stream, own, told)

    const foreign = entries.filter((entry) => !own.includes(entry))
    const write = eventWriter()
    const ingested = await ingestInOrder(this.link, stream, foreign, ingest)
    await this.#tell(
      stream,
      foreign,
      // The publisher overwrote the state with its event. Unless this event is the last, the state is unknown now.
      ingested.flatMap((one) =>
        one === null ? [] : { event: one.event, json: write(one.event), stateMs: one.last ? stateMs : 0 },
      ),
    )
  }

  /** Acknowledges after the script, so that the entries of a dead router go to another one. */
  async #tell(stream: string, entries: readonly Entry[], events: readonly Told[]): Promise<void> {
    if (entries.length === 0) return
    const { ttls, meter } = this.#options
    const { keys } = this.link
    // In a cluster a script cannot reach the keys of a job whose event is in the wrong stream.
    const told = keys.cluster ? events.filter(({ event }) => keys.shardOf(event.jobId) === this.#shard) : events
    const names = [keys.channel(this.#shard)]
    const args = [keys.cluster ? 'SPUBLISH' : 'PUBLISH', String(ttls().markMs)]
    for (const { event, json, stateMs } of told) {
      names.push(keys.state(event.domain, event.jobId), keys.routed(event))
      args.push(json, String(event.n), event.jobId, String(stateMs))
    }
    const answer = told.length === 0 ? [] : await this.#script.run(this.link, { keys: names, arguments: args })
    const [first = 0, ...skipped]: unknown[] = Array.isArray(answer) ? answer : []
    const isNew = Number(first)
    this.#skips.note(skipped)
    const ids = entries.map(({ id }) => id)
    await this.link.call((redis) => redis.xAck(stream, GROUP, ids))
    meter.routed('new', isNew)
    meter.routed('repeated', told.length - isNew)
  }

  /** Takes over entries that other routers did not acknowledge, and removes consumers that have ended. */
  async #reclaim(): Promise<void> {
    const { world, reclaimAfterMs = RECLAIM_AFTER_MS } = this.#options
    for (const stream of this.#streams) {
      await this.#reclaimFrom(stream, reclaimAfterMs).catch((error: unknown) => {
        if (!isReply(error, 'NOGROUP') && !isReply(error, 'WRONGTYPE')) throw error
      })
    }
    const key = this.link.keys.domains(this.#shard)
    await this.link.call((redis) => redis.zRemRangeByScore(key, 0, world.now() - DOMAIN_IDLE_MS))
    await this.link.call((redis) => redis.zRemRangeByRank(key, 0, -DOMAINS_MAX - 1))
    this.#reclaimAtMs = world.monotonic() + reclaimAfterMs / 2
  }

  async #reclaimFrom(stream: string, idleMs: number): Promise<void> {
    for (let from = '0-0'; ; ) {
      const claimed = await this.link.call((redis) =>
        redis.xAutoClaim(stream, GROUP, this.#consumer, idleMs, from, { COUNT: READ_MAX }),
      )
      await this.#route(
        stream,
        claimed.messages.filter((entry) => entry !== null),
      )
      if (claimed.nextId === '0-0') break
      from = claimed.nextId
    }
    const consumers = await this.link.call((redis) => redis.xInfoConsumers(stream, GROUP))
    for (const { name, pending, idle } of consumers) {
      if (pending > 0 || idle < CONSUMER_IDLE_MS) continue
      await this.link.call((redis) => redis.xGroupDelConsumer(stream, GROUP, name))
    }
  }
}
