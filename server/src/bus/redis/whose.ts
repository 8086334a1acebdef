import type { World } from '@ichido/sdk/world'
import { isEvent } from './event-json.ts'
import type { RedisLink } from './link.ts'
import { isReply } from './script.ts'

export interface SkipMeter {
  /** Keys that hold something that is not Ichido's, each time that one is met. */
  redisKeysSkipped(count: number): void
}

export interface SkipOptions {
  world: Pick<World, 'monotonic'>
  meter: SkipMeter
  onTrouble(error: unknown): void
}

const LOOKED_AT = 10
const SAY_AGAIN_MS = 60_000

/** Whether a stream that no node has named holds events for Ichido; others of that name are another program's. */
export async function holdsEvents(link: RedisLink, stream: string): Promise<boolean> {
  try {
    const last = await link.call((redis) => redis.xRevRange(stream, '+', '-', { COUNT: LOOKED_AT }))
    return last?.some(isEvent) === true
  } catch (error) {
    if (isReply(error, 'WRONGTYPE')) return false
    throw error
  }
}

/** Counts keys that are left as they are, and tells of them once a minute: there may be one for each job. */
export class Skips {
  readonly #options: SkipOptions
  #sayAtMs = Number.NEGATIVE_INFINITY

  constructor(options: SkipOptions) {
    this.#options = options
  }

  note(keys: readonly unknown[], why = 'holds data that is not Ichido’s, and is left unchanged'): void {
    const [first] = keys
    if (first === undefined) return
    const { world, meter, onTrouble } = this.#options
    meter.redisKeysSkipped(keys.length)
    if (world.monotonic() < this.#sayAtMs) return
    this.#sayAtMs = world.monotonic() + SAY_AGAIN_MS
    const advice = 'Give Ichido its own Redis, or set REDIS_PREFIX.'
    onTrouble(new Error(`The key ${JSON.stringify(first)} in Redis ${why}. ${advice}`))
  }
}
