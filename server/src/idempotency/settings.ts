import { type ClientWorld, platformWorld } from '@ichido/sdk/world'
import { KEPT_HEADERS, REPLAYED } from './answer.ts'
import type { IdempotencyMetrics } from './metrics.ts'

/** What the plugin takes from outside of itself: a clock for records, one for waiting, timers, ids, jitter. */
export type IdempotencyWorld = ClientWorld

/** All that can be set, with its default. */
export interface Settings {
  /** How long an answer is replayed: 72 hours. */
  ttlMs: number
  /** For how long a key stays with a holder that fell silent; renewed while it lives: 30 s. */
  leaseMs: number
  /** How long a second caller waits for the answer of the first before it is told to come back: 10 s. */
  waitMs: number
  /** What a key that comes back with another request is answered with: 409, or the IETF draft's 422. */
  mismatchStatus: 409 | 422
  /** Headers of an answer that are kept beside `content-type` and `content-encoding`, in small letters. */
  headers: readonly string[]
  /** Bodies of requests are read to be compared: 1 MiB. */
  requestMaxBytes: number
  /** A larger body is sent, but not kept: 1 MiB. */
  responseMaxBytes: number
  /** Hears what no caller can be told: a handler that threw, a lease that could not be renewed. Warns by default. */
  onError: (error: unknown) => void
  /** Counts uses, duplicates, mismatches, waits and keys in doubt; counts nothing by default. */
  metrics: IdempotencyMetrics
  world: IdempotencyWorld
}

const HOUR_MS = 3_600_000
const MIB = 1024 * 1024
const INTEGERS = ['ttlMs', 'leaseMs', 'waitMs', 'requestMaxBytes', 'responseMaxBytes'] as const

export function settingsOf(given: Partial<Settings>): Settings {
  const settings: Settings = {
    ttlMs: 72 * HOUR_MS,
    leaseMs: 30_000,
    waitMs: 10_000,
    mismatchStatus: 409,
    headers: KEPT_HEADERS,
    requestMaxBytes: MIB,
    responseMaxBytes: MIB,
    onError: (error) => process.emitWarning(error instanceof Error ? error : String(error)),
    metrics: { count() {} },
    world: platformWorld,
    ...given,
  }
  for (const name of INTEGERS) {
    const value = settings[name]
    const least = name === 'waitMs' ? 0 : 1
    if (!Number.isSafeInteger(value) || value < least) {
      throw new TypeError(`${name} must be an integer of at least ${least}, not ${String(value)}`)
    }
  }
  if (settings.mismatchStatus !== 409 && settings.mismatchStatus !== 422) {
    throw new TypeError(`mismatchStatus must be 409 or 422, not ${String(settings.mismatchStatus)}`)
  }
  return {
    ...settings,
    headers: settings.headers.map((name) => name.toLowerCase()).filter((name) => name !== REPLAYED),
  }
}
