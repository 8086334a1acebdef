import { hash } from 'node:crypto'
import { readFileSync } from 'node:fs'
import type { World } from '@ichido/sdk/world'
import { createClient, createCluster, ErrorReply, type RedisClientType, type RedisClusterType } from '@redis/client'
import { readAddress } from '../../core/node/addresses.ts'
import { Keys } from './keys.ts'
import { type MemoryPolicy, readMemoryPolicy } from './memory-policy.ts'

/** Redis cannot be reached, or did not answer in time. The command may or may not have been carried out. */
export class RedisUnavailable extends Error {
  override readonly name = 'RedisUnavailable'
}

interface LinkOptions {
  world: World
  url: string
  shards: number
  /** Stands before all names of keys and channels. */
  prefix?: string | undefined
  /** Called once each time that Redis becomes unreachable. */
  onTrouble(error: unknown): void
}

/** The commands that both a single server and a cluster take. */
type Commands = Pick<
  RedisClusterType,
  | 'eval'
  | 'evalSha'
  | 'mGet'
  | 'set'
  | 'xAck'
  | 'xAutoClaim'
  | 'xGroupCreate'
  | 'xGroupDelConsumer'
  | 'xInfoConsumers'
  | 'xInfoGroups'
  | 'xPendingRange'
  | 'xRange'
  | 'xReadGroup'
  | 'xRevRange'
  | 'zAdd'
  | 'zCard'
  | 'zRange'
  | 'zRemRangeByRank'
  | 'zRemRangeByScore'
  | 'zScore'
>

export const DEADLINE_MS = 2_000
const CONNECT_TIMEOUT_MS = 2_000
const RECONNECT_MIN_MS = 50
const RECONNECT_MAX_MS = 1_000
/** Commands that wait for the socket or for an answer. More are refused. */
const COMMANDS_MAX = 10_000
/** Keys that one SCAN looks at. It takes 1 to 2 ms of Redis's time. */
const SCAN_KEYS = 5_000

/**
 * A connection that reconnects when it breaks. Meanwhile commands are refused at once. Each command has a deadline, so
 * Redis cannot block the caller.
 */
export class RedisLink {
  readonly keys: Keys
  readonly #options: LinkOptions
  readonly #ready = new Set<() => void>()
  #connection: Connection | null = null
  #callOff = () => {}
  #inTrouble = false
  #closed = false

  constructor(options: LinkOptions) {
    this.#options = options
    this.keys = new Keys(readAddress(options.url).cluster, options.shards, options.prefix)
    this.#connect()
  }

  /** Rejects if there is no connection, or if the answer does not arrive in time. */
  call<T>(what: (commands: Commands) => Promise<T>, deadlineMs = DEADLINE_MS): Promise<T> {
    const connection = this.#connection
    if (connection === null || !connection.connected)
      return Promise.reject(new RedisUnavailable('Redis is not connected'))
    return new Promise((resolve, reject) => {
      const callOff = this.#options.world.after(deadlineMs, () => {
        reject(new RedisUnavailable('Redis does not answer'))
        // All other answers on this connection would be late, too.
        this.#renew(connection)
      })
      what(connection.client)
        .finally(callOff)
        .then(resolve, (error: unknown) => {
          reject(error instanceof ErrorReply ? error : new RedisUnavailable('Redis is not connected', { cause: error }))
        })
    })
  }

  /** Scans the next part of all streams. The cursor is '0' at first and at the end. Returns null in a cluster. */
  async scanStreams(cursor: string): Promise<{ cursor: string; names: string[] } | null> {
    if (this.keys.cluster) return null
    const scan = this.#connection?.scanStreams
    if (scan === undefined) throw new RedisUnavailable('Redis is not connected')
    return this.call(() => scan(cursor, `${this.keys.prefix}*:events:*`))
  }

  /** Reads the memory policy of each server that holds keys. */
  async memory(): Promise<MemoryPolicy[]> {
    const memory = this.#connection?.memory
    if (memory === undefined) throw new RedisUnavailable('Redis is not connected')
    return (await this.call(memory)).map(readMemoryPolicy)
  }

  /** Subscribes to channels. `began` is called after each new subscription, because messages may have been missed. */
  listen(channels: readonly string[], hear: (message: string) => void, began: () => void): void {
    const listen = async () => {
      const connection = this.#connection
      if (connection === null || !connection.connected) return
      try {
        await Promise.all(channels.map((channel) => connection.subscribe(channel, hear)))
        began()
      } catch (error) {
        this.#trouble(error)
        this.#renew(connection)
      }
    }
    this.onConnect(() => void listen())
  }

  /** Calls back for each new connection, and at once if there is one. */
  onConnect(callback: () => void): void {
    this.#ready.add(callback)
    if (this.#connection?.connected) callback()
  }

  close(): void {
    this.#closed = true
    this.#callOff()
    this.#connection?.destroy()
    this.#connection = null
  }

  #connect(): void {
    const { url } = this.#options
    const connection = readAddress(url).cluster
      ? clusterConnection(url, (error) => this.#trouble(error))
      : singleConnection(url, (error) => this.#trouble(error))
    this.#connection = connection
    connection
      .open(() => this.#connected(connection))
      .catch((error: unknown) => {
        this.#trouble(error)
        this.#renew(connection)
      })
  }

  #connected(connection: Connection): void {
    if (this.#connection !== connection) return
    connection.connected = true
    this.#inTrouble = false
    for (const callback of this.#ready) callback()
  }

  #renew(connection: Connection): void {
    if (this.#connection !== connection || this.#closed) return
    connection.connected = false
    connection.destroy()
    this.#connection = null
    this.#callOff = this.#options.world.after(RECONNECT_MAX_MS / 2, () => this.#connect())
  }

  #trouble(error: unknown): void {
    if (this.#inTrouble || this.#closed) return
    this.#inTrouble = true
    this.#options.onTrouble(error)
  }
}

interface Connection {
  client: Commands
  connected: boolean
  /** Calls back each time that it has connected. */
  open(connected: () => void): Promise<unknown>
  subscribe(channel: string, listener: (message: string) => void): Promise<unknown>
  /** Only for a single server: the servers of a cluster have different keys. */
  scanStreams?: (cursor: string, pattern: string) => Promise<{ cursor: string; names: string[] }>
  /** The memory section of INFO, of each server. */
  memory(): Promise<string[]>
  destroy(): void
}

const reconnectStrategy = (retries: number) => Math.min(RECONNECT_MIN_MS * 2 ** retries, RECONNECT_MAX_MS)

const common = {
  disableOfflineQueue: true,
  // CLIENT SETINFO is unknown to Redis before 7.2, so an ACL cannot name it there.
  disableClientInfo: true,
  commandsQueueMaxLength: COMMANDS_MAX,
  maintNotifications: 'disabled',
} as const

function singleConnection(url: string, onError: (error: unknown) => void): Connection {
  const socket = { connectTimeout: CONNECT_TIMEOUT_MS, reconnectStrategy }
  const client: RedisClientType = createClient({ url, socket, ...common })
  client.on('error', onError)
  return {
    client,
    connected: false,
    open(connected) {
      client.on('ready', connected)
      return client.connect()
    },
    subscribe: (channel, listener) => client.subscribe(channel, listener),
    async scanStreams(cursor, pattern) {
      const options = { MATCH: pattern, TYPE: 'stream', COUNT: SCAN_KEYS }
      const found = await client.scan(cursor, options)
      return { cursor: found.cursor, names: found.keys }
    },
    memory: async () => [await client.info('memory')],
    destroy: () => client.destroy(),
  }
}

function clusterConnection(url: string, onError: (error: unknown) => void): Connection {
  const { urls, tls, username, password } = readAddress(url)
  const credentials = {
    ...(username === undefined ? {} : { username }),
    ...(password === undefined ? {} : { password }),
  }
  const socket = { connectTimeout: CONNECT_TIMEOUT_MS, reconnectStrategy, ...(tls ? { tls } : {}) }
  const client: RedisClusterType = createCluster({
    rootNodes: urls.map((each) => ({ url: each })),
    defaults: { ...common, ...credentials, socket },
  })
  client.on('error', onError)
  client.on('node-error', onError)
  return {
    client,
    connected: false,
    async open(connected) {
      await client.connect()
      connected()
      client.on('node-ready', connected)
    },
    subscribe: (channel, listener) => client.sSubscribe(channel, listener),
    memory: () => Promise.all(client.masters.map(async (node) => (await client.nodeClient(node)).info('memory'))),
    destroy: () => client.destroy(),
  }
}

export interface ScriptCall {
  keys: string[]
  arguments: string[]
}

/** Runs a script by its SHA, which Redis knows until it restarts or SCRIPT FLUSH. */
export class Script {
  readonly #text: string
  readonly #sha: string

  constructor(file: 'publish.lua' | 'route.lua') {
    this.#text = readFileSync(new URL(`../lua/${file}`, import.meta.url), 'utf8')
    this.#sha = hash('sha1', this.#text)
  }

  async run(link: RedisLink, call: ScriptCall): Promise<unknown> {
    try {
      return await link.call((redis) => redis.evalSha(this.#sha, call))
    } catch (error) {
      if (!isReply(error, 'NOSCRIPT')) throw error
      // EVAL loads the script, so its SHA is known afterwards.
      return await link.call((redis) => redis.eval(this.#text, call))
    }
  }
}

/** True if the error is a reply that begins with this code. */
export function isReply(error: unknown, word: string): boolean {
  return error instanceof Error && error.message.startsWith(word)
}
