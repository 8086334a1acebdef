import { statement } from '../statement.ts'

/** The term of the leader that writes: the first parameters of each statement that contains `LED`. */
export const TERM = { epoch: 'integer', holder: 'text' } as const

const OF_TERM = 'ichido.leadership WHERE epoch = $1 AND holder = $2'

/**
 * Each write of the leader begins with this text and takes its rows from `l`: `FROM l CROSS JOIN …`. A subquery in the
 * WHERE would not be enough: when the write waits for a row, PostgreSQL does not evaluate the subquery again, and a former
 * leader writes. The lock keeps the term from ending before the write does. It also delays the next leader, so PostgreSQL
 * ends the session of a node that is idle for two seconds while it holds the lock.
 */
export const LED = `WITH l AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', '2000', true) FROM ${OF_TERM} FOR SHARE)`

/** The same on SQLite, as a condition: its transactions run one after the other. */
export const LED_SQLITE = `EXISTS (SELECT 1 FROM ${OF_TERM})`

/**
 * Guards that there is no leader, or that its term has expired. An expiry too far ahead was written before the clock went
 * back. Each leader gets an epoch of its own.
 */
export const takeLeadership = statement('take_leadership', {
  params: { holder: 'text', ttl_ms: 'integer' },
  row: { epoch: 'integer' },
  sql: `UPDATE ichido.leadership SET holder = $holder, epoch = epoch + 1, expires_at = now_ms() + $ttl_ms
    WHERE id = 1 AND (holder IS NULL OR holder = $holder OR expires_at <= now_ms() OR expires_at > now_ms() + 2 * $ttl_ms)
    RETURNING epoch`,
})

export const renewLeadership = statement('renew_leadership', {
  params: { ...TERM, ttl_ms: 'integer' },
  row: { epoch: 'integer' },
  sql: `UPDATE ichido.leadership SET expires_at = now_ms() + $ttl_ms WHERE epoch = $epoch AND holder = $holder
    RETURNING epoch`,
})

/** The epoch stays: the next leader raises it. */
export const resignLeadership = statement('resign_leadership', {
  params: TERM,
  row: { epoch: 'integer' },
  sql: `UPDATE ichido.leadership SET holder = NULL, expires_at = 0 WHERE epoch = $epoch AND holder = $holder
    RETURNING epoch`,
})

/** For a leader that has died. */
export const vacateLeadership = statement('vacate_leadership', {
  params: {},
  row: { epoch: 'integer' },
  sql: 'UPDATE ichido.leadership SET holder = NULL, expires_at = 0 WHERE id = 1 AND holder IS NOT NULL RETURNING epoch',
})

/** `server` is the start time of the database's server: no two servers start at the same microsecond. */
export const readLeadership = statement('read_leadership', {
  params: {},
  row: { epoch: 'integer', holder: 'text?', now: 'integer', server: 'text' },
  postgres: `SELECT epoch, holder, now_ms() AS now, extract(epoch FROM pg_postmaster_start_time())::text AS server
    FROM ichido.leadership WHERE id = 1`,
  sqlite: `SELECT epoch, holder, now_ms() AS now, '' AS server FROM ichido.leadership WHERE id = 1`,
})
