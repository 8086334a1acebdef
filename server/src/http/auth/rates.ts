import type { World } from '@ichido/sdk/world'
import type { Caller } from '../../core/limits/roles.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Deps } from '../../services/deps.ts'
import { maximumReached, setBounded } from '../../services/limits/maximum.ts'
import type { WorkerIdentity } from '../../services/workers/workers.ts'

/** A bucket holds the requests of this many seconds, so that a burst passes. */
const BURST_SECONDS = 10
/** Beyond this, the oldest bucket is dropped. It is full when its token comes again. */
const BUCKETS_MAX = 10_000
export const FAILURES_MAX = 10
export const WINDOW_MS = 60_000
/** Beyond this, the oldest address is dropped, so that an attacker cannot fill the memory. */
const ADDRESSES_MAX = 10_000

type RateSetting = 'token_requests_per_second_max' | 'worker_requests_per_second_max'

/** The requests that are left, and when they were counted. */
interface Bucket {
  left: number
  atMs: number
}

/**
 * Limits the requests of each token and worker on this node, with token buckets in memory. It costs a look-up and a
 * read of the clock. Open mode has no limit, because its caller is on the machine.
 */
export class RequestRates {
  readonly #deps: Pick<Deps, 'world' | 'settings' | 'meter'>
  readonly #buckets = new Map<string, Bucket>()

  constructor(deps: Pick<Deps, 'world' | 'settings' | 'meter'>) {
    this.#deps = deps
  }

  /** Takes one request out of the caller's bucket; false: the bucket is empty. */
  admits(caller: Caller): boolean {
    return caller === LOCAL_ADMIN || this.#take(nameOf(caller), 'token_requests_per_second_max') > 0
  }

  /** Throws the refusal if the bucket is empty. */
  admit(caller: Caller): void {
    if (!this.admits(caller)) throw this.#refusal('token_requests_per_second_max', 'This token')
  }

  /** The bucket belongs to the worker, so a renewed token does not get a second one. */
  admitWorker({ workerId }: WorkerIdentity): void {
    if (this.#take(workerId, 'worker_requests_per_second_max') > 0) return
    throw this.#refusal('worker_requests_per_second_max', 'This worker')
  }

  /** The requests that were left, with this one; below 1: it is refused, and takes nothing. */
  #take(name: string, setting: RateSetting): number {
    const perSecond = this.#deps.settings.get(setting)
    const nowMs = this.#deps.world.monotonic()
    const bucket = this.#buckets.get(name) ?? this.#fill(name, perSecond * BURST_SECONDS, nowMs)
    const refilled = bucket.left + ((nowMs - bucket.atMs) * perSecond) / 1000
    bucket.left = Math.min(refilled, perSecond * BURST_SECONDS)
    bucket.atMs = nowMs
    if (bucket.left < 1) return 0
    return bucket.left--
  }

  #fill(name: string, left: number, atMs: number): Bucket {
    const bucket = { left, atMs }
    setBounded(this.#buckets, BUCKETS_MAX, name, bucket)
    return bucket
  }

  #refusal(setting: RateSetting, who: string) {
    return maximumReached(this.#deps, {
      setting,
      says: (max) => `${who} has sent more than ${max} requests a second for a while`,
      advice: 'wait as long as Retry-After says, put several jobs or reports into one request',
      // After a second every bucket has a request again.
      retryAfterMs: 1_000,
    })
  }
}

/** A stream token has no id, so its user counts. */
function nameOf({ tokenId, userId }: Caller): string {
  return tokenId ?? `user ${userId}`
}

/** Counts failed authentications by client address: the first ones in a minute are answered 401, the rest 429. */
export class FailureLimit {
  readonly #world: Pick<World, 'monotonic'>
  readonly #windows = new Map<string, { failures: number; endsMs: number }>()

  constructor(world: Pick<World, 'monotonic'>) {
    this.#world = world
  }

  /** Counts a failure. The answer is how many seconds the address must wait, or null. */
  record(address: string): number | null {
    const nowMs = this.#world.monotonic()
    const window = this.#windows.get(address)
    if (window !== undefined && window.endsMs > nowMs) {
      window.failures++
      return window.failures > FAILURES_MAX ? Math.ceil((window.endsMs - nowMs) / 1000) : null
    }
    // Inserted again, so that the map is ordered by the ends of the windows.
    this.#windows.delete(address)
    setBounded(this.#windows, ADDRESSES_MAX, address, { failures: 1, endsMs: nowMs + WINDOW_MS })
    return null
  }
}
