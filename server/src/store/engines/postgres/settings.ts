import type pg from 'pg'
import type { Lane } from '../../port.ts'

/** Longer than any batch takes. After a lock timeout a single command tries again, and a batch leaves the item out. */
const LOCK_TIMEOUT_MS = 2_000
/** A node that vanished inside a transaction must not hold its locks until TCP notices, which takes hours. */
const IDLE_IN_TRANSACTION_MS = 10_000

/**
 * For all own connections: a setting of the role or of the database must not end a statement, nor change the meaning of a name.
 * This process itself gives up a statement that takes too long. Warnings tell of a COMMIT that is not on the standby.
 */
const OWN = ['statement_timeout = 0', 'client_min_messages = warning', 'search_path = pg_catalog, pg_temp']

/**
 * For the connections that write. They are the store's own: an application's pool has other settings, and transactions that wait
 * for a submit can use it up. Prepared plans are made once and kept. A plan from when a table was empty would scan the table
 * for ever: a batch of submits took 50 times as long at 100,000 jobs. Every statement of a command has an index, so the planner
 * must use it, and must not read a small table as a whole.
 */
const WRITING = [
  ...OWN,
  'synchronous_commit = on',
  `lock_timeout = ${LOCK_TIMEOUT_MS}`,
  `idle_in_transaction_session_timeout = ${IDLE_IN_TRANSACTION_MS}`,
  'plan_cache_mode = force_generic_plan',
  'enable_seqscan = off',
  'enable_hashjoin = off',
  'enable_mergejoin = off',
  'random_page_cost = 1.1',
  'jit = off',
]

/** Known from PostgreSQL 17 and 14 on. */
const TRANSACTION_TIMEOUT = 'transaction_timeout'
const IDLE_SESSION_TIMEOUT = 'idle_session_timeout'

const unlessUnknown = (name: string, local: boolean) =>
  `SELECT set_config('${name}', '0', ${local}) WHERE current_setting('${name}', true) IS NOT NULL`

const session = (settings: readonly string[]) =>
  [
    "SET default_transaction_isolation = 'read committed'",
    ...settings.map((setting) => `SET ${setting}`),
    unlessUnknown(TRANSACTION_TIMEOUT, false),
    unlessUnknown(IDLE_SESSION_TIMEOUT, false),
  ].join(';')

/** Sent once on each direct connection that writes. */
export const SESSION = session(['default_transaction_read_only = off', ...WRITING])

/** Sent once on each other direct connection of our own. */
export const READING_SESSION = session(OWN)

/** READ COMMITTED, whatever the database's default: a stricter level would count quotas in a snapshot older than the lock. */
const TRANSACTION = 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE'

/** On any connection: a migration may take longer than the timeouts of the role. */
export const BEGIN_MIGRATION = [TRANSACTION, ...OWN.map((setting) => `SET LOCAL ${setting}`)].join(';')

export const BEGIN = `${TRANSACTION}; SET LOCAL synchronous_commit = on`

/** Behind a pooler other applications share the session: every setting ends with its transaction. */
export const BEGIN_POOLED = [
  TRANSACTION,
  ...WRITING.map((setting) => `SET LOCAL ${setting}`),
  unlessUnknown(TRANSACTION_TIMEOUT, true),
].join(';')

/** The number of connections in each lane. */
const BATCHES_MAX = 5
const USERS_MAX = 3
const URGENT_MAX = 2
const OTHERS_MAX = 3

export type Pools = Readonly<Record<Lane | 'others', pg.Pool>>

/** The connections that write. */
export function openPools(writers: (max: number) => pg.Pool): Pools {
  return {
    batches: writers(BATCHES_MAX),
    users: writers(USERS_MAX),
    urgent: writers(URGENT_MAX),
    others: writers(OTHERS_MAX),
  }
}
