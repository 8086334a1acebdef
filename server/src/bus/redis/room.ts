import type { World } from '@ichido/sdk/world'
import { isReply, type RedisLink } from './link.ts'
import { EVICTS_ADVICE } from './memory-policy.ts'

/** Redis refuses writes, because its memory or its disk is full. */
class RedisFull extends Error {
  override readonly name = 'RedisFull'
}

export interface RoomMeter {
  /** Reports whether Redis is full, or drops keys when it is full. */
  redisTrouble(trouble: 'full' | 'evicts', is: boolean): void
}

interface RoomOptions {
  world: World
  link: RedisLink
  meter: RoomMeter
  onTrouble(error: unknown): void
}

/** How often a full Redis is probed with a write. */
const PROBE_MS = 1_000

/** Remembers whether Redis is full, so that not every batch has to try. */
export class Room {
  readonly #options: RoomOptions
  #full = false
  #probeAtMs = 0
  /** Null: Redis did not tell. */
  #evicts: boolean | null = null

  constructor(options: RoomOptions) {
    this.#options = options
    options.link.onConnect(() => void this.evicts())
  }

  /** Returns the answer of a write, and notices when Redis refused it as full. */
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
   * One successful write is not enough to end this state, because it may have gone to another server of a cluster. All
   * shards are probed, at most once a second.
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

  /** True if Redis drops keys when its memory is full, or does not tell. */
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

/** Redis 6 puts the refusal of a command into the message of the script's error, without a code of its own. */
function isRefused(error: unknown): boolean {
  return isReply(error, 'MISCONF') || (error instanceof Error && error.message.includes('OOM command not allowed'))
}
