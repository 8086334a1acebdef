/**
 * The outcomes of a request with a key:
 * - `use`: the request has a well-formed key
 * - `duplicate`: it got the stored answer of an earlier request
 * - `mismatch`: it was refused, because its key was used with a different request
 * - `wait`: it had to wait for the first request with its key, whatever the outcome
 * - `in_doubt`: the first request with its key had broken off
 */
export type IdempotencyCount = 'use' | 'duplicate' | 'mismatch' | 'wait' | 'in_doubt'

export interface IdempotencyMetrics {
  /** Called once for a request and each outcome that applies to it. */
  count(what: IdempotencyCount, route: string): void
}

/** The shape of `Counter` in @prometheus-io/client and prom-client; the plugin itself depends on neither. */
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

/** Makes Prometheus counters on a registry: `prometheusCounters(Counter, registry)`. */
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
