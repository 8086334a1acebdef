import { type Statement, statement } from '../statement.ts'

const LIMITS = `CASE WHEN q.custom THEN q.max_concurrent ELSE d.max_concurrent END AS max_concurrent,
  CASE WHEN q.custom THEN q.cost_limit_micros ELSE d.cost_limit_micros END AS cost_limit_micros,
  CASE WHEN q.custom THEN q.period ELSE d.period END AS period,
  CASE WHEN q.custom THEN q.max_bytes ELSE d.max_bytes END AS max_bytes, q.used_bytes`

/** Of a user's row `q` and the default's row `d`. */
export const UNLIMITED = `CASE WHEN q.custom THEN q.max_concurrent IS NULL AND q.cost_limit_micros IS NULL AND q.max_bytes IS NULL
  ELSE d.max_concurrent IS NULL AND d.cost_limit_micros IS NULL AND d.max_bytes IS NULL END`

/**
 * Takes user ids, sorted. Of those without limits it shares the rows that say so, and answers with the time after that.
 * Nothing is counted for them, so their submits need not wait for each other, only whoever would set a limit waits: or an
 * application's open transaction with one submit in it would hold up all others.
 */
export const shareUsers = statement('share_users', {
  postgres: `WITH l AS MATERIALIZED (
      SELECT q.user_id, ${LIMITS} FROM ichido.quotas q, ichido.quotas d
      WHERE q.user_id = ANY($1::text[]) AND d.user_id = '*' AND ${UNLIMITED}
      ORDER BY q.user_id FOR SHARE OF q, d)
    SELECT l.*, now_ms() AS now FROM l`,
  sqlite: `SELECT q.user_id, ${LIMITS}, now_ms() AS now FROM ichido.quotas q, ichido.quotas d
    WHERE q.user_id = $1 AND d.user_id = '*' AND ${UNLIMITED}`,
})

/**
 * Takes user ids, sorted. Locks the rows of those with limits in that order; answers with the limits in force and the time
 * after the lock. On PostgreSQL it locks none while one of the users is missing: who held some while adding the others would
 * deadlock with who did alike. And none without limits: others share that row, and may wait for one that is shared here.
 */
export const lockUsers = statement('lock_users', {
  postgres: `WITH l AS MATERIALIZED (
      SELECT q.user_id, ${LIMITS} FROM ichido.quotas q, ichido.quotas d
      WHERE q.user_id = ANY($1::text[]) AND d.user_id = '*'
        AND (SELECT count(*) FROM ichido.quotas WHERE user_id = ANY($1::text[])) = cardinality($1::text[])
        AND NOT (${UNLIMITED})
      ORDER BY q.user_id FOR UPDATE OF q)
    SELECT l.*, now_ms() AS now FROM l`,
  sqlite: `SELECT q.user_id, ${LIMITS}, now_ms() AS now FROM ichido.quotas q, ichido.quotas d
    WHERE q.user_id = $1 AND d.user_id = '*'`,
})

const QUOTA = 'user_id, custom, max_concurrent, cost_limit_micros, period, updated_at'

/** Takes user ids, sorted. A row must exist before it can be locked. */
export const addUsers = statement('add_users', {
  postgres: `INSERT INTO ichido.quotas (${QUOTA})
    SELECT u, false, NULL, NULL, 'month', now_ms() FROM unnest($1::text[]) u ORDER BY u
    ON CONFLICT DO NOTHING`,
  sqlite: `INSERT INTO ichido.quotas (${QUOTA}) VALUES ($1, false, NULL, NULL, 'month', now_ms()) ON CONFLICT DO NOTHING`,
})

const ACTIVE = `latest AND state IN ('PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING')`
const OPEN = 'consumed_at IS NULL AND released_at IS NULL'
const USE = `u.id AS user_id,
      (SELECT count(*) FROM ichido.runs WHERE user_id = u.id AND ${ACTIVE}) AS active,
      (SELECT count(*) FROM ichido.job_reservations WHERE user_id = u.id AND ${OPEN} AND expires_at > u.at) AS reserved,
      (SELECT count(*) FROM ichido.job_reservations WHERE user_id = u.id AND ${OPEN} AND expires_at <= u.at) > 0 AS lapsed,
      now_ms() AS now`

/**
 * Takes users whose rows are locked, and the instant that their command decides by: a reservation that is counted as
 * expired must not be brought by a submit of the same batch. A statement of its own: its snapshot must be younger than the
 * lock. Answers with the time, too: whatever it no longer counts had ended by then. And with whether it was the first to
 * leave out reservations that have expired; counted, as for `EXISTS` PostgreSQL may read the whole table.
 */
export const countInUse = statement('count_in_use', {
  postgres: `SELECT ${USE} FROM unnest($1::text[], $2::bigint[]) AS u(id, at)`,
  sqlite: `SELECT ${USE} FROM (SELECT $1 AS id, $2 AS at) u`,
})

// Ten jobs of the highest cost pass 2^53 millionths; a sum beyond it cannot be read, and no limit reaches that far.
const SPENT = 'CASE WHEN spent_micros > 9007199254740991 THEN 9007199254740991 ELSE spent_micros END AS spent_micros'

/** Takes user, period, period start. */
export const readSpent = statement('read_spent', {
  postgres: `SELECT user_id, ${SPENT}
    FROM unnest($1::text[], $2::text[], $3::bigint[]) AS t(user_id, period, period_start)
    JOIN ichido.cost_counters c USING (user_id, period, period_start)`,
  sqlite: `SELECT user_id, ${SPENT} FROM ichido.cost_counters
    WHERE user_id = $1 AND period = $2 AND period_start = $3`,
})

/** Takes user, period, period start, change; one row a counter, sorted. Last in the order of locks. */
export const addSpent = statement('add_spent', {
  postgres: `INSERT INTO ichido.cost_counters AS c (user_id, period, period_start, spent_micros)
    SELECT * FROM unnest($1::text[], $2::text[], $3::bigint[], $4::bigint[])
    ON CONFLICT (user_id, period, period_start) DO UPDATE SET spent_micros = c.spent_micros + excluded.spent_micros`,
  sqlite: `INSERT INTO ichido.cost_counters AS c (user_id, period, period_start, spent_micros) VALUES ($1, $2, $3, $4)
    ON CONFLICT (user_id, period, period_start) DO UPDATE SET spent_micros = c.spent_micros + excluded.spent_micros`,
})

/** Of a run whose job was charged for it and keeps the charge: a run that is canceled before it starts gives it back. */
const COSTS = "NOT (c.state = 'CANCELED' AND c.started_at IS NULL)"
const COSTING_RUNS = 'FROM ichido.runs c WHERE c.job_id = j.id AND'

/** Of a job `j`: no run of it ever started, and all were canceled. Its next run is charged again. */
export const GIVEN_BACK = `NOT EXISTS (SELECT 1 ${COSTING_RUNS} ${COSTS})`

const REFUND = `r.user_id, r.created_at AS charged_at, j.estimated_cost_micros
    FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id`

/** Takes runs that were just canceled; answers with what is to be given back, and when it was charged. */
export const readRefunds = statement('read_refunds', {
  postgres: `SELECT ${REFUND} WHERE r.id = ANY($1::uuid[]) AND ${GIVEN_BACK}`,
  sqlite: `SELECT ${REFUND} WHERE r.id = $1 AND ${GIVEN_BACK}`,
})

const CHARGE = `j.id AS job_id, j.user_id, j.estimated_cost_micros,
    (SELECT c.created_at ${COSTING_RUNS} ${COSTS} ORDER BY c.run_no LIMIT 1) AS charged_at FROM ichido.jobs j`

/** Takes jobs that ran; answers with what each was charged, and when: with the first of its runs that gave nothing back. */
export const readCharges = statement('read_charges', {
  postgres: `SELECT ${CHARGE} WHERE j.id = ANY($1::uuid[])`,
  sqlite: `SELECT ${CHARGE} WHERE j.id = $1`,
})

/** Takes a user whose row is there: the limits that are its own. */
export const lockQuota = statement('lock_quota', {
  postgres: `SELECT custom, max_concurrent, cost_limit_micros, period, max_bytes FROM ichido.quotas WHERE user_id = $1
    FOR NO KEY UPDATE`,
  sqlite: 'SELECT custom, max_concurrent, cost_limit_micros, period, max_bytes FROM ichido.quotas WHERE user_id = $1',
})

/** Takes user, slots, cost limit, period, bytes. What is stored is counted anew. */
export const putQuota = statement(
  'put_quota',
  `INSERT INTO ichido.quotas (${QUOTA}, max_bytes) VALUES ($1, true, $2, $3, $4, now_ms(), $5)
    ON CONFLICT (user_id) DO UPDATE SET custom = true, max_concurrent = excluded.max_concurrent,
      cost_limit_micros = excluded.cost_limit_micros, period = excluded.period, updated_at = excluded.updated_at,
      max_bytes = excluded.max_bytes, used_bytes = NULL`,
)

export const deleteQuota = statement(
  'delete_quota',
  `UPDATE ichido.quotas SET custom = false, max_concurrent = NULL, cost_limit_micros = NULL, max_bytes = NULL,
      used_bytes = NULL, updated_at = now_ms()
    WHERE user_id = $1 AND custom RETURNING user_id`,
)

/** Takes a user id, known or not; answers with the limits in force and whether they are its own. */
export const readQuota = statement(
  'read_quota',
  `SELECT q.custom, ${LIMITS} FROM ichido.quotas d LEFT JOIN ichido.quotas q ON q.user_id = $1 WHERE d.user_id = '*'`,
)

/**
 * Takes the user id that the page before ended with, or ''. Whoever had a token is a user, and whoever has submitted,
 * reserved or was given limits. A page of each table by its key, and the first of both: whoever is among those is on the
 * page of each table that has it. The number stands in the text: a plan kept for any number may sort a whole table.
 */
export function readUsers(max: number): Statement {
  const page = `WHERE user_id > $1 AND user_id <> '*' ORDER BY user_id LIMIT ${max}`
  return statement(
    '',
    `SELECT COALESCE(q.user_id, u.user_id) AS user_id, u.created_at, q.custom, ${LIMITS}
      FROM (SELECT * FROM ichido.quotas ${page}) q
      FULL JOIN (SELECT * FROM ichido.users ${page}) u ON u.user_id = q.user_id
      JOIN ichido.quotas d ON d.user_id = '*'
      ORDER BY 1 LIMIT ${max}`,
  )
}
