import { randomUUID } from 'node:crypto'
import { createClient, type RedisClientType } from '@redis/client'
import type { Redis, RedisOptions } from '../../../../scripts/services/redis.ts'
import { privateRedis, privateRedisCluster } from '../../../../scripts/testing/services.ts'
import { EmbeddedBus } from '../../bus/embedded.ts'
import { RedisLink } from '../../bus/redis/link.ts'
import { RedisRelay, type Ttls } from '../../bus/redis/relay.ts'
import { Router, type RouterOptions } from '../../bus/redis/router.ts'
import { RedisBus } from '../../bus/redis/subscriber.ts'
import { DEFAULT_SHARDS, type StoredEvent } from '../../core/events/event.ts'
import { realWorld } from '../../node/world.ts'
import { until } from '../store/store.ts'

export const REDIS_KINDS = ['single', 'cluster'] as const
export type RedisKind = (typeof REDIS_KINDS)[number]

export interface TestRedis {
  kind: RedisKind
  url: string
  /** One server, or the three of a cluster. */
  nodes: readonly Redis[]
  /** Flushes all its servers. */
  flushAll(): Promise<void>
  /** Removes the keys of a pattern. */
  remove(pattern: string): Promise<void>
  each(see: (key: string) => void): Promise<void>
  /** Adds an entry that no node has written. */
  add(stream: string, data: string): Promise<void>
  command(...words: string[]): Promise<void>
  /** How often a command was called. */
  calls(command: string): Promise<number>
  /** Closes all connections. */
  hangUp(): Promise<void>
  restart(): Promise<void>
  kill9(): Promise<void>
  forgetScripts(): Promise<void>
  /** Redis stops answering, but keeps its connections open. */
  freeze(): void
  thaw(): void
  stop(): Promise<void>
}

export async function testRedis(kind: RedisKind, options?: RedisOptions): Promise<TestRedis> {
  const started = kind === 'single' ? await privateRedis(options) : await privateRedisCluster()
  const nodes = 'nodes' in started ? started.nodes : [started]
  const password = 'nodes' in started ? new URL(started.url.replace('+cluster', '').replace(/,.*/, '')).password : null
  const on = (act: (client: RedisClientType) => Promise<unknown>) =>
    Promise.all(
      nodes.map(async (node) => {
        const url = password === null ? node.url : `redis://:${password}@127.0.0.1:${node.port}`
        const client: RedisClientType = createClient({ url })
        await client.connect()
        await act(client)
        client.destroy()
      }),
    )
  const everywhere = (command: string[]) => on((client) => client.sendCommand(command))
  return {
    kind,
    url: started.url,
    nodes,
    flushAll: async () => void (await everywhere(['FLUSHALL'])),
    remove: async (pattern) =>
      void (await on(async (client) => {
        for (const key of await client.keys(pattern)) await client.del(key)
      })),
    each: async (see) => void (await on(async (client) => (await client.keys('*')).forEach(see))),
    add: async (stream, data) => void (await on((client) => client.xAdd(stream, '*', { data }))),
    command: async (...words) => void (await everywhere(words)),
    async calls(command) {
      let calls = 0
      await on(async (client) => {
        const line = new RegExp(`^cmdstat_${command}:calls=(\\d+)`, 'm').exec(await client.info('commandstats'))
        calls += Number(line?.[1] ?? 0)
      })
      return calls
    },
    hangUp: async () => void (await everywhere(['CLIENT', 'KILL', 'TYPE', 'normal'])),
    forgetScripts: async () => void (await everywhere(['SCRIPT', 'FLUSH'])),
    freeze: () => nodes.forEach(({ pid }) => void process.kill(pid, 'SIGSTOP')),
    thaw: () => nodes.forEach(({ pid }) => void process.kill(pid, 'SIGCONT')),
    restart: async () => void (await Promise.all(nodes.map((node) => node.restart()))),
    kill9: async () => void (await Promise.all(nodes.map((node) => node.kill9()))),
    stop: () => started.stop(),
  }
}

export const DAY_TTLS: Ttls = { stateMs: 3_600_000, markMs: 7_200_000 }

/** The parts of the bus on one Redis. Each has its own connections, as in separate processes. */
export class RedisScene {
  readonly link: RedisLink
  readonly relay: RedisRelay
  ttls = DAY_TTLS
  readonly relayed = { added: 0, repeated: 0, left: 0, swept: 0, skipped: 0 }
  readonly routed = { new: 0, repeated: 0 }
  /** The number of keys that were skipped. */
  skipped = 0
  readonly redisTroubles = new Set<string>()
  readonly troubles: unknown[] = []
  readonly #url: string
  readonly #prefix: string
  readonly #closers: (() => unknown)[] = []

  constructor(url: string, prefix = '', owner = 'test') {
    this.#url = url
    this.#prefix = prefix
    this.link = this.connect()
    this.relay = new RedisRelay({
      world: realWorld,
      link: this.link,
      owner,
      ttls: () => this.ttls,
      meter: {
        relayed: (outcome, count) => {
          this.relayed[outcome] += count
        },
        redisKeysSkipped: (count) => this.#skip(count),
        redisTrouble: (trouble, is) => void this.redisTroubles[is ? 'add' : 'delete'](trouble),
      },
      onTrouble: (error) => this.troubles.push(error),
    })
  }

  connect(): RedisLink {
    const link = new RedisLink({
      world: realWorld,
      url: this.#url,
      shards: DEFAULT_SHARDS,
      prefix: this.#prefix,
      onTrouble: (error) => this.troubles.push(error),
    })
    this.#closers.push(() => link.close())
    return link
  }

  router(changes: Partial<RouterOptions> = {}): Router {
    const router = new Router({
      world: realWorld,
      connect: () => this.connect(),
      ttls: () => this.ttls,
      meter: {
        routed: (outcome, count) => {
          this.routed[outcome] += count
        },
        redisKeysSkipped: (count) => this.#skip(count),
      },
      ingest: async (events) => events.map(() => null),
      onTrouble: (error) => this.troubles.push(error),
      ...changes,
    })
    this.#closers.push(() => router.close())
    return router
  }

  bus(): RedisBus {
    const bus = new RedisBus(new EmbeddedBus(), this.connect())
    this.#closers.push(() => bus.close())
    return bus
  }

  /** Resolves when Redis answers on every shard. */
  up(): Promise<unknown> {
    return until('Redis to answer', async () => (await this.relay.look()) !== 'away')
  }

  async state(domain: string, jobId: string): Promise<Record<string, unknown> | null> {
    const [text] = await this.link.call((redis) => redis.mGet([this.link.keys.state(domain, jobId)]))
    return text == null ? null : JSON.parse(text)
  }

  /** The entries of the stream that contains a job's events. */
  async entries(domain: string, jobId: string): Promise<Record<string, unknown>[]> {
    const { keys } = this.link
    const found = await this.link.call((redis) => redis.xRange(keys.stream(domain, keys.shardOf(jobId)), '-', '+'))
    return (found ?? []).map(({ message }) => JSON.parse(message.data ?? ''))
  }

  #skip(count: number): void {
    this.skipped += count
  }

  async close(): Promise<void> {
    await this.relay.close()
    for (const close of this.#closers.splice(0).reverse()) await close()
  }
}

export function anEvent(changes: Partial<StoredEvent> = {}): StoredEvent {
  const data = '{"status":"done"}'
  return {
    jobId: randomUUID(),
    domain: 'scan',
    n: 2,
    stage: 'vision',
    seq: 10,
    data,
    createdAtMs: Date.now(),
    ...changes,
  }
}
