import { hash } from 'node:crypto'
import type { EventName } from '../../core/event.ts'

/** The consumer group that all routers share. */
export const GROUP = 'router'

const DIGITS = 8
const DIGITS_RANGE = 16 ** DIGITS

/** S4: the whole MD5 of the job's id, as a number, modulo the shards. It is divided a few digits at a time, as on paper. */
export function shardOf(jobId: string, shards: number): number {
  const digest = hash('md5', jobId)
  let rest = 0
  for (let at = 0; at < digest.length; at += DIGITS) {
    rest = (rest * DIGITS_RANGE + Number.parseInt(digest.slice(at, at + DIGITS), 16)) % shards
  }
  return rest
}

/**
 * The names of S4, exactly, on a single Redis. In a cluster the shard is their hash tag, so that all that a script touches is
 * in one slot.
 */
export class Keys {
  readonly cluster: boolean
  readonly shards: readonly number[]

  constructor(cluster: boolean, shards: number) {
    this.cluster = cluster
    this.shards = Array.from({ length: shards }, (_, shard) => shard)
  }

  shardOf(jobId: string): number {
    return shardOf(jobId, this.shards.length)
  }

  stream(domain: string, shard: number): string {
    return `${domain}:events:${this.#tag(shard)}`
  }

  /** What a stream is called by; null for other names, and for shards that there are not. */
  readStream(name: string): { domain: string; shard: number } | null {
    const [, domain, shard] = /^(.+):events:(\d{1,4})$/.exec(name) ?? []
    if (domain === undefined || Number(shard) >= this.shards.length) return null
    return { domain, shard: Number(shard) }
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
    return `ichido:domains:${this.#tag(shard)}`
  }

  /** There as long as Redis has not lost everything. */
  memory(shard: number): string {
    return `ichido:memory:${this.#tag(shard)}`
  }

  channel(shard: number): string {
    return `ichido:wake:${this.#tag(shard)}`
  }

  #tag(shard: number): string {
    return this.cluster ? `{${shard}}` : String(shard)
  }

  #ofJob(name: string, jobId: string): string {
    return this.cluster ? `${name}:{${this.shardOf(jobId)}}` : name
  }
}
