import { hash } from 'node:crypto'
import type { EventName } from '../../core/event.ts'

export const SHARDS = 4
export const SHARD_NUMBERS: readonly number[] = Array.from({ length: SHARDS }, (_, shard) => shard)

/** S4: the whole MD5 of the job's id, as a number, modulo the shards: of a power of two the last digit is enough. */
export function shardOf(jobId: string): number {
  return Number.parseInt(hash('md5', jobId).slice(-1), 16) % SHARDS
}

/**
 * The names of S4, exactly, on a single Redis. In a cluster the shard is their hash tag, so that all that a script touches is
 * in one slot.
 */
export class Keys {
  readonly cluster: boolean

  constructor(cluster: boolean) {
    this.cluster = cluster
  }

  stream(domain: string, shard: number): string {
    return `${domain}:events:${this.#tag(shard)}`
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
    return this.cluster ? `${name}:{${shardOf(jobId)}}` : name
  }
}
