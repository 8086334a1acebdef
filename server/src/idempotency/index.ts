import type { IncomingMessage } from 'node:http'
import { fetchAdapter } from './adapters/fetch.ts'
import { nodeAdapter } from './adapters/node.ts'
import { Gate } from './gate.ts'
import type { Call } from './key-claim.ts'
import { type Settings, settingsOf } from './settings.ts'
import type { Keys } from './stores/keys.ts'

export type { FetchHandler } from './adapters/fetch.ts'
export type { Answer } from './answer.ts'
export type { BrokenOff, Recovery, Route } from './gate.ts'
export type { Call } from './key-claim.ts'
export type { IdempotencyWorld, Settings } from './settings.ts'
export {
  type CounterClass,
  type IdempotencyCount,
  type IdempotencyMetrics,
  prometheusCounters,
} from './settings.ts'
export { KeyLost, type Keys, POSTGRES_SCHEMA, SQLITE_SCHEMA } from './stores/keys.ts'
export { type PostgresKeys, postgresKeys } from './stores/postgres.ts'
export { type SqliteKeys, sqliteKeys } from './stores/sqlite.ts'

/** Protects handlers by their `Idempotency-Key` header. */
export interface Idempotency<Tx, Returned> {
  /** Wraps a handler that turns a Request into a Response. */
  fetch: ReturnType<typeof fetchAdapter<Tx, Returned>>
  /**
   * Wraps a handler that writes to `res`. It never rejects, and calls `next` only for the first request of a key.
   *
   * @example
   * app.post('/orders', (req, res, next) => idempotency.node(req, res, { route: 'POST /orders', user: 'ann' }, next))
   */
  node: ReturnType<typeof nodeAdapter<Tx, Returned>>['node']
  /** Returns the call of a request that `node` passed on. */
  callOf(req: IncomingMessage): Call<Tx, Returned>
  /** Removes expired answers now; otherwise small batches are removed once a minute. */
  tidy(): Promise<number>
}

/**
 * Makes the plugin for the application's own database.
 *
 * @example
 * const idempotency = createIdempotency({ keys: postgresKeys(pool) })
 * app.post('/orders', (c) =>
 *   idempotency.fetch(c.req.raw, { route: 'POST /orders', user: 'ann' }, (call) =>
 *     call.withKey(async (tx) => ({ status: 201, body: await insertOrder(tx) })),
 *   ),
 * )
 */
export function createIdempotency<Tx, Returned>(
  options: { keys: Keys<Tx, Returned> } & Partial<Settings>,
): Idempotency<Tx, Returned> {
  const { keys, ...given } = options
  const settings = settingsOf(given)
  const gate = new Gate(keys, settings)
  return { fetch: fetchAdapter(gate, settings), ...nodeAdapter(gate, settings), tidy: () => gate.tidy() }
}
