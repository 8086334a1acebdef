import { type ClientWorld, platformWorld } from '@ichido/sdk/world'
import { KEPT_HEADERS, REPLAYED } from './answer.ts'

const HOUR_MS = 3_600_000
const MIB = 1024 * 1024
const INTEGERS = ['ttlMs', 'leaseMs', 'waitMs', 'requestMaxBytes', 'responseMaxBytes'] as const
const COUNTERS: Record<IdempotencyCount, { name: string; help: string }> = {
  use: { name: 'ichido_idempotency_uses_total', help: 'Requests that came with an idempotency key' },
  duplicate: {
    name: 'ichido_idempotency_duplicates_total',
    help: 'Requests that got the stored answer of an earlier request',
  },
  mismatch: {
    name: 'ichido_idempotency_mismatches_total',
    help: 'Requests that were refused, because their key was used with a different request',
  },
  wait: { name: 'ichido_idempotency_waits_total', help: 'Requests that waited for the first request with their key' },
  in_doubt: {
    name: 'ichido_idempotency_in_doubt_total',
    help: 'Requests whose key had a first request that broke off',
  },
}

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
  /** Clocks, timers, ids and randomness; for tests. */
  world: IdempotencyWorld
}

/**
 * The outcomes of a request with a key:
 * - `use`: the request has a well-formed key
 * - `duplicate`: it got the stored answer of an earlier request
 * - `mismatch`: it was refused, because its key was used with a different request
 * - `wait`: it had to wait for the first request with its key, whatever the outcome
 * - `in_doubt`: the first request with its key had broken off
 */
export type IdempotencyCount = 'use' | 'duplicate' | 'mismatch' | 'wait' | 'in_doubt'

/** Counts the outcomes of requests. */
export interface IdempotencyMetrics {
  /** Called once for a request and each outcome that applies to it. */
  count(outcome: IdempotencyCount, route: string): void
}

/** The shape of `Counter` in @prometheus-io/client and prom-client; the plugin itself depends on neither. */
export type CounterClass<Registry> = new (configuration: {
  name: string
  help: string
  labelNames: 'route'[]
  registers: Registry[]
}) => { inc(labels: { route: string }): void }

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

/**
 * Makes Prometheus counters on a registry.
 *
 * @example
 * const metrics = prometheusCounters(Counter, registry)
 */
export function prometheusCounters<Registry>(Counter: CounterClass<Registry>, registry: Registry): IdempotencyMetrics {
  const counter = (outcome: IdempotencyCount) =>
    new Counter({ ...COUNTERS[outcome], labelNames: ['route'], registers: [registry] })
  const counters = {
    use: counter('use'),
    duplicate: counter('duplicate'),
    mismatch: counter('mismatch'),
    wait: counter('wait'),
    in_doubt: counter('in_doubt'),
  }
  return { count: (outcome, route) => counters[outcome].inc({ route }) }
}
