import type { World } from '@ichido/sdk/world'
import type { RedisLink } from './link.ts'
import { EVICTS_ADVICE } from './memory-policy.ts'
import { isReply } from './script.ts'

/** Redis refuses to write for lack of memory, or because its own disk is full. */
export class RedisFull extends Error {
  override readonly name = 'RedisFull'
}

export interface RoomMeter {
  /** Whether Redis is full, or drops keys when it is. */
  redisTrouble(trouble: 'full' | 'evicts', is: boolean): void
}

export interface RoomOptions {
  world: World
  link: RedisLink
  meter: RoomMeter
  onTrouble(error: unknown): void
}

/** How often Redis is asked to write something while it is full. */
const PROBE_MS = 1_000

/** Knows whether Redis has room, so that a full one is not asked again with every batch. */
export class Room {
  readonly #options: RoomOptions
  #full = false
  #probeAtMs = 0
  /** Null: it could not be learned. */
  #evicts: boolean | null = null

  constructor(options: RoomOptions) {
    this.#options = options
    options.link.onConnect(() => void this.evicts())
  }

  /** Passes on the answer of something that writes, and notices when Redis refused it. */
  async write<T>(answer: Promise<T>): Promise<T> {
    try {
      return await answer
    } catch (error) {
      if (!isRefused(error)) throw error
      const full = new RedisFull(`Redis is full, so events wait in the store: ${String(error)}`, { cause: error })
      this.#note(true)
      throw full
    }
  }

  /**
   * A write that succeeds does not end it, for it may have gone to another server of a cluster. All shards are tried, once a
   * second at most.
   */
  async isFull(): Promise<boolean> {
    const { world, link } = this.#options
    if (!this.#full || world.monotonic() < this.#probeAtMs) return this.#full
    this.#probeAtMs = world.monotonic() + PROBE_MS
    const probe = (shard: number) =>
      link.call((redis) => redis.set(link.keys.probe(shard), '1', { expiration: { type: 'PX', value: PROBE_MS } }))
    await this.write(Promise.all(link.keys.shards.map(probe))).then(
      () => this.#note(false),
      () => {},
    )
    return this.#full
  }

  /** Whether Redis may drop keys by itself. Where that cannot be learned, it may. */
  async evicts(): Promise<boolean> {
    const { link, meter, onTrouble } = this.#options
    const found = await link.memory().catch(() => null)
    if (found !== null) {
      const evicting = found.find(({ evicts }) => evicts)
      meter.redisTrouble('evicts', evicting !== undefined)
      if (evicting !== undefined && this.#evicts !== true) {
        onTrouble(new Error(`Redis drops keys when its memory is full (${evicting.policy}). ${EVICTS_ADVICE}`))
      }
      this.#evicts = evicting !== undefined
    }
    return this.#evicts ?? true
  }

  #note(full: boolean): void {
    const { world, meter, onTrouble } = this.#options
    if (full) this.#probeAtMs = world.monotonic() + PROBE_MS
    if (this.#full === full) return
    this.#full = full
    meter.redisTrouble('full', full)
    if (full)
      onTrouble(new RedisFull('Redis is full, so events wait in the store. Raise maxmemory, or delete other keys.'))
  }
}

/** Redis 6 puts the refusal of a command into the message of the script that gave it. */
function isRefused(error: unknown): boolean {
  return isReply(error, 'MISCONF') || (error instanceof Error && error.message.includes('OOM command not allowed'))
}
