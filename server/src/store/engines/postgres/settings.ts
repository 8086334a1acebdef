/** Of one transaction: longer than any batch takes. Who comes alone is tried again, who came in a batch is taken out of it. */
const LOCK_TIMEOUT_MS = 2_000
/** A node that vanished in the middle of a transaction must not hold its users' locks until TCP notices, in hours. */
const IDLE_IN_TRANSACTION_MS = 10_000

/**
 * Of all connections of our own: a setting of the role or of the database must not end a statement, nor change what a name
 * means. A statement that takes too long is given up by this process. Warnings tell of a COMMIT that is not on the standby.
 */
const OWN = ['statement_timeout = 0', 'client_min_messages = warning', 'search_path = pg_catalog, pg_temp']

/**
 * Of the connections that write. They are the store's own, for an application's pool has other wishes for its own work, and
 * can be used up by transactions that wait for a submit. Prepared plans are made once and kept: one made while a table was
 * still empty would scan it for ever, so that a batch of submits took 50 times as long at 100,000 jobs. Every statement of a
 * command has its index; the planner is told not to look elsewhere, nor to take a small table whole for its pages being far
 * apart.
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

/** Of PostgreSQL 17 and 14 on; an older server does not know them. */
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

/** Once for each direct connection that writes. */
export const SESSION = session(['default_transaction_read_only = off', ...WRITING])

/** Once for each other direct connection that is not the caller's. */
export const READING_SESSION = session(OWN)

/** READ COMMITTED, whatever the database's default: a stricter level would count quotas in a snapshot older than the lock. */
const TRANSACTION = 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE'

/** On any connection: a migration may take long, and the role's timeouts are not made for it. */
export const BEGIN_MIGRATION = [TRANSACTION, ...OWN.map((setting) => `SET LOCAL ${setting}`)].join(';')

export const BEGIN = `${TRANSACTION}; SET LOCAL synchronous_commit = on`

/** Behind a pooler a session belongs to other applications too: every setting ends with its transaction. */
export const BEGIN_POOLED = [
  TRANSACTION,
  ...WRITING.map((setting) => `SET LOCAL ${setting}`),
  unlessUnknown(TRANSACTION_TIMEOUT, true),
].join(';')
