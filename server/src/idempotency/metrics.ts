/**
 * What became of a request with a key:
 * - `use`: every one with a well-formed key
 * - `duplicate`: answered with the stored answer of an earlier request
 * - `mismatch`: refused, because its key had come with another request
 * - `wait`: had to wait for the first request of its key, whatever came of it
 * - `in_doubt`: found that the first request of its key had broken off
 */
export type IdempotencyCount = 'use' | 'duplicate' | 'mismatch' | 'wait' | 'in_doubt'

export interface IdempotencyMetrics {
  /** Called once for a request and each of these that holds for it. */
  count(what: IdempotencyCount, route: string): void
}

/** What `Counter` of @prometheus-io/client, or of prom-client, looks like: the plugin itself depends on neither. */
export type CounterClass<Registry> = new (configuration: {
  name: string
  help: string
  labelNames: 'route'[]
  registers: Registry[]
}) => { inc(labels: { route: string }): void }

const COUNTERS: Record<IdempotencyCount, { name: string; help: string }> = {
  use: { name: 'ichido_idempotency_uses_total', help: 'Requests that came with an idempotency key' },
  duplicate: {
    name: 'ichido_idempotency_duplicates_total',
    help: 'Requests that were answered with the stored answer of an earlier one',
  },
  mismatch: {
    name: 'ichido_idempotency_mismatches_total',
    help: 'Requests that were refused, because their key had come with another request',
  },
  wait: { name: 'ichido_idempotency_waits_total', help: 'Requests that waited for the first one of their key' },
  in_doubt: {
    name: 'ichido_idempotency_in_doubt_total',
    help: 'Requests that found that the first one of their key had broken off',
  },
}

/** Makes the counters on a registry: `prometheusCounters(Counter, registry)`. */
export function prometheusCounters<Registry>(Counter: CounterClass<Registry>, registry: Registry): IdempotencyMetrics {
  const counter = (what: IdempotencyCount) =>
    new Counter({ ...COUNTERS[what], labelNames: ['route'], registers: [registry] })
  const counters = {
    use: counter('use'),
    duplicate: counter('duplicate'),
    mismatch: counter('mismatch'),
    wait: counter('wait'),
    in_doubt: counter('in_doubt'),
  }
  return { count: (what, route) => counters[what].inc({ route }) }
}
