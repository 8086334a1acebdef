import { type ClientWorld, platformWorld } from '@ichido/sdk/world'
import { KEPT_HEADERS, REPLAYED } from './answer.ts'
import type { IdempotencyMetrics } from './metrics.ts'

/** The outside world of the plugin: a clock for records, one for waiting, timers, ids and randomness. */
export type IdempotencyWorld = ClientWorld

/** The settings of the plugin. */
export interface Settings {
  /** How long an answer is replayed; default 72 hours. */
  ttlMs: number
  /** How long a silent process keeps a key; a live process renews its lease. Default 30 s. */
  leaseMs: number
  /** How long a second request waits for the answer of the first before it gets 409; default 10 s. */
  waitMs: number
  /** The status for a known key with a different request: 409, or 422 as in the IETF draft. */
  mismatchStatus: 409 | 422
  /** Headers of an answer that are stored besides `content-type` and `content-encoding`, in lower case. */
  headers: readonly string[]
  /** The maximum size of a request body, which is read to be compared; default 1 MiB. */
  requestMaxBytes: number
  /** A larger response body is sent, but not stored; default 1 MiB. */
  responseMaxBytes: number
  /** Called with errors that no caller can be told, such as a lease that could not be renewed; default: a warning of the process. */
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
