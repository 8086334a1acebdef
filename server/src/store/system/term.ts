/** Fences every write of a leader. */
export interface Term {
  /** Names the node, and differs after each restart of it. */
  holder: string
  epoch: number
}

/** The term of the leader that writes: parameters of each statement that contains `LED`. */
export const TERM = { epoch: 'integer', holder: 'text' } as const

const OF_TERM = 'ichido.leadership WHERE epoch = $epoch AND holder = $holder'

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
