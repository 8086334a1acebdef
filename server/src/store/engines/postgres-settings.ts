/** Of one transaction: longer than any batch takes. Who comes alone is tried again, who came in a batch is taken out of it. */
const LOCK_TIMEOUT_MS = 2_000
/** A node that vanished in the middle of a transaction must not hold its users' locks until TCP notices, in hours. */
const IDLE_IN_TRANSACTION_MS = 10_000

/**
 * Of the connections that write. They are the store's own, for an application's pool has other wishes for its own work, and
 * can be used up by transactions that wait for a submit. Prepared plans are made once and kept: one made while a table was
 * still empty would scan it for ever, so that a batch of submits took 50 times as long at 100,000 jobs. Every statement of a
 * command has its index; the planner is told not to look elsewhere, nor to take a small table whole for its pages being far
 * apart.
 */
const SETTINGS = [
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

/** Once for each direct connection that writes. */
export const SESSION = [
  "default_transaction_isolation = 'read committed'",
  'default_transaction_read_only = off',
  ...SETTINGS,
]
  .map((setting) => `SET ${setting}`)
  .join(';')

/** READ COMMITTED, whatever the database's default: a stricter level would count quotas in a snapshot older than the lock. */
const TRANSACTION = 'BEGIN ISOLATION LEVEL READ COMMITTED READ WRITE'

export const BEGIN = `${TRANSACTION}; SET LOCAL synchronous_commit = on`

/** Behind a pooler a session belongs to other applications too: every setting ends with its transaction. */
export const BEGIN_POOLED = [TRANSACTION, ...SETTINGS.map((setting) => `SET LOCAL ${setting}`)].join(';')
