import { hash } from 'node:crypto'
import { NAME_PATTERN } from '@ichido/sdk/protocol'
import type { EventName } from '../../core/events/event.ts'

/** The consumer group that all routers share. */
export const GROUP = 'router'

const DIGITS = 8
const DIGITS_RANGE = 16 ** DIGITS

/**
 * As in S4: the whole MD5 of the job's id, as a number, modulo the shards. The number is divided a few digits at a
 * time.
 */
export function shardOf(jobId: string, shards: number): number {
  const digest = hash('md5', jobId)
  let rest = 0
  for (let at = 0; at < digest.length; at += DIGITS) {
    rest = (rest * DIGITS_RANGE + Number.parseInt(digest.slice(at, at + DIGITS), 16)) % shards
  }
  return rest
}

/**
 * Makes the names of S4, exactly, on a single Redis. In a cluster the shard is their hash tag, so that all keys of a
 * script are in one slot.
 */
export class Keys {
  readonly cluster: boolean
  /** Stands before every name. It is empty, as in S4, unless several programs share the Redis. */
  readonly prefix: string
  readonly shards: readonly number[]

  constructor(cluster: boolean, shards: number, prefix = '') {
    this.cluster = cluster
    this.prefix = prefix
    this.shards = Array.from({ length: shards }, (_, shard) => shard)
  }

  shardOf(jobId: string): number {
    return shardOf(jobId, this.shards.length)
  }

  stream(domain: string, shard: number): string {
    return `${this.prefix}${domain}:events:${this.#tag(shard)}`
  }

  /** The domain and the shard of a stream; null if the name is not of one of our streams. */
  readStream(name: string): { domain: string; shard: number } | null {
    if (!name.startsWith(this.prefix)) return null
    const [, domain = '', shard = ''] = /^(.+):events:\{?(\d{1,4})\}?$/.exec(name.slice(this.prefix.length)) ?? []
    if (!isDomain(domain) || Number(shard) >= this.shards.length) return null
    return this.stream(domain, Number(shard)) === name ? { domain, shard: Number(shard) } : null
  }

  state(domain: string, jobId: string): string {
    return this.#ofJob(`${domain}:state:${jobId}`, jobId)
  }

  /** Hazard 14: the seed's second mark lacks the stage, and two stages may use one seq. */
  published({ jobId, stage, seq }: EventName): string {
    return this.#ofJob(`published:${jobId}:${stage}:${seq}`, jobId)
  }

  routed({ jobId, stage, seq }: EventName): string {
    return this.#ofJob(`router:published:${jobId}:${stage}:${seq}`, jobId)
  }

  domains(shard: number): string {
    return `${this.prefix}ichido:domains:${this.#tag(shard)}`
  }

  /** This key exists until Redis loses everything. It holds the owner of these names. */
  memory(shard: number): string {
    return `${this.prefix}ichido:memory:${this.#tag(shard)}`
  }

  /** This key is written only to test whether Redis accepts writes. */
  probe(shard: number): string {
    return `${this.prefix}ichido:probe:${this.#tag(shard)}`
  }

  channel(shard: number): string {
    return `${this.prefix}ichido:wake:${this.#tag(shard)}`
  }

  #tag(shard: number): string {
    return this.cluster ? `{${shard}}` : String(shard)
  }

  #ofJob(name: string, jobId: string): string {
    return `${this.prefix}${name}${this.cluster ? `:{${this.shardOf(jobId)}}` : ''}`
  }
}

/** True if the text can be a job's domain. Other programs can write any text into Redis. */
export function isDomain(text: string): boolean {
  return NAME_PATTERN.test(text)
}
