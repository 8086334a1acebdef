import { statement } from '../statement.ts'

/** The term that a write of the leader belongs to: $1 is its epoch, $2 its holder. */
const TERM = 'ichido.leadership WHERE epoch = $1 AND holder = $2'

/**
 * A write of the leader begins with it and takes its rows from `l`: `FROM l CROSS JOIN …`. A subquery in the WHERE would
 * not do: when the write waits for a row, the re-check does not look at it again, and a leader of the past writes. Locked,
 * the term cannot end before the write does. Whoever holds the lock holds up the next leader, so a node that stops in the
 * middle of it is thrown out after two seconds.
 */
export const LED = `WITH l AS MATERIALIZED (
    SELECT set_config('idle_in_transaction_session_timeout', '2000', true) FROM ${TERM} FOR SHARE)`

/** The same on SQLite, as a condition: its transactions come one after the other. */
export const LED_SQLITE = `EXISTS (SELECT 1 FROM ${TERM})`

/**
 * Takes a name and a time in ms. Guards: nobody leads, or the time of whoever did is up. A time too far ahead was written
 * before the clock went back. Answers with the new epoch; each leader has its own.
 */
export const takeLeadership = statement(
  'take_leadership',
  `UPDATE ichido.leadership SET holder = $1, epoch = epoch + 1, expires_at = now_ms() + $2
    WHERE id = 1 AND (holder IS NULL OR holder = $1 OR expires_at <= now_ms() OR expires_at > now_ms() + 2 * $2)
    RETURNING epoch`,
)

/** Takes epoch, name and a time in ms. */
export const renewLeadership = statement(
  'renew_leadership',
  `UPDATE ichido.leadership SET expires_at = now_ms() + $3 WHERE epoch = $1 AND holder = $2 RETURNING epoch`,
)

/** Takes epoch and name. The epoch stays: the next leader raises it. */
export const resignLeadership = statement(
  'resign_leadership',
  `UPDATE ichido.leadership SET holder = NULL, expires_at = 0 WHERE epoch = $1 AND holder = $2 RETURNING epoch`,
)

/** Whoever leads has died. */
export const vacateLeadership = statement(
  'vacate_leadership',
  'UPDATE ichido.leadership SET holder = NULL, expires_at = 0 WHERE id = 1 AND holder IS NOT NULL RETURNING epoch',
)

/** The epoch, the store's clock, and when its server was started: no two servers are started at the same microsecond. */
export const readLeadership = statement('read_leadership', {
  postgres: `SELECT epoch, holder, now_ms() AS now, extract(epoch FROM pg_postmaster_start_time())::text AS server
    FROM ichido.leadership WHERE id = 1`,
  sqlite: `SELECT epoch, holder, now_ms() AS now, '' AS server FROM ichido.leadership WHERE id = 1`,
})
