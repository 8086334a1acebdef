import { COST_PERIODS } from '../../core/limits/quota.ts'
import { statement } from '../statement.ts'

const period = { oneOf: COST_PERIODS } as const

const LIMITS_ROW = {
  max_concurrent: 'integer?',
  cost_limit_micros: 'integer?',
  period,
  max_bytes: 'integer?',
  used_bytes: 'integer?',
} as const

const LIMITS = `CASE WHEN q.custom THEN q.max_concurrent ELSE d.max_concurrent END AS max_concurrent,
  CASE WHEN q.custom THEN q.cost_limit_micros ELSE d.cost_limit_micros END AS cost_limit_micros,
  CASE WHEN q.custom THEN q.period ELSE d.period END AS period,
  CASE WHEN q.custom THEN q.max_bytes ELSE d.max_bytes END AS max_bytes, q.used_bytes`

/** For a user's row `q` and the default's row `d`. */
export const UNLIMITED = `CASE WHEN q.custom THEN q.max_concurrent IS NULL AND q.cost_limit_micros IS NULL AND q.max_bytes IS NULL
  ELSE d.max_concurrent IS NULL AND d.cost_limit_micros IS NULL AND d.max_bytes IS NULL END`

/** The limits in force, and the time after the lock. */
const LOCKED_ROW = { user_id: 'text', ...LIMITS_ROW, now: 'integer' } as const

/**
 * Shares the rows of users without limits. The users are sorted. Nothing is counted for these users, so their submits
 * need not wait for each other: otherwise an application's open transaction with one submit would block all other
 * submits. Only a transaction that sets a limit waits.
 */
export const shareUsers = statement('share_users', {
  params: { user_id: 'text' },
  row: LOCKED_ROW,
  postgres: `WITH l AS MATERIALIZED (
      SELECT q.user_id, ${LIMITS} FROM ichido.quotas q, ichido.quotas d
      WHERE q.user_id = ANY($user_id::text[]) AND d.user_id = '*' AND ${UNLIMITED}
      ORDER BY q.user_id FOR SHARE OF q, d)
    SELECT l.*, now_ms() AS now FROM l`,
  sqlite: `SELECT q.user_id, ${LIMITS}, now_ms() AS now FROM ichido.quotas q, ichido.quotas d
    WHERE q.user_id = $user_id AND d.user_id = '*' AND ${UNLIMITED}`,
})

/**
 * Locks the rows of users with limits, in sorted order. On PostgreSQL it locks nobody while one of the users has no
 * row: two transactions that locked some users and then added the others would deadlock. It does not lock users without
 * limits: other transactions share those rows, and may wait for a row that this one shares.
 */
export const lockUsers = statement('lock_users', {
  params: { user_id: 'text' },
  row: LOCKED_ROW,
  postgres: `WITH l AS MATERIALIZED (
      SELECT q.user_id, ${LIMITS} FROM ichido.quotas q, ichido.quotas d
      WHERE q.user_id = ANY($user_id::text[]) AND d.user_id = '*'
        AND (SELECT count(*) FROM ichido.quotas WHERE user_id = ANY($user_id::text[])) = cardinality($user_id::text[])
        AND NOT (${UNLIMITED})
      ORDER BY q.user_id FOR UPDATE OF q)
    SELECT l.*, now_ms() AS now FROM l`,
  sqlite: `SELECT q.user_id, ${LIMITS}, now_ms() AS now FROM ichido.quotas q, ichido.quotas d
    WHERE q.user_id = $user_id AND d.user_id = '*'`,
})

const QUOTA = 'user_id, custom, max_concurrent, cost_limit_micros, period, updated_at'

/** A row must exist before it can be locked. The users are sorted. */
export const addUsers = statement('add_users', {
  params: { user_id: 'text' },
  row: {},
  postgres: `INSERT INTO ichido.quotas (${QUOTA})
    SELECT u, false, NULL, NULL, 'month', now_ms() FROM unnest($user_id::text[]) u ORDER BY u
    ON CONFLICT DO NOTHING`,
  sqlite: `INSERT INTO ichido.quotas (${QUOTA}) VALUES ($user_id, false, NULL, NULL, 'month', now_ms()) ON CONFLICT DO NOTHING`,
})

const OPEN = 'consumed_at IS NULL AND released_at IS NULL'
const USE = `u.id AS user_id,
      (SELECT count(*) FROM ichido.ready WHERE user_id = u.id AND version > 0) + (SELECT count(*) FROM ichido.held WHERE user_id = u.id) AS active,
      (SELECT count(*) FROM ichido.job_reservations WHERE user_id = u.id AND ${OPEN} AND expires_at > u.at) AS reserved,
      (SELECT count(*) FROM ichido.job_reservations WHERE user_id = u.id AND ${OPEN} AND expires_at <= u.at) > 0 AS lapsed,
      now_ms() AS now`

/**
 * The users' rows are locked. `at` is the instant that the command decides by: a submit of the same batch must not
 * bring a reservation that is counted as expired here. This is a separate statement: its snapshot must be younger than
 * the lock. Runs and reservations that are not counted had ended by `now`. `lapsed` is true if this is the first count
 * without some expired reservations. It is a count, because for `EXISTS` PostgreSQL may read the whole table.
 */
export const countInUse = statement('count_in_use', {
  params: { user_id: 'text', at: 'integer' },
  row: { user_id: 'text', active: 'integer', reserved: 'integer', lapsed: 'flag', now: 'integer' },
  postgres: `SELECT ${USE} FROM unnest($user_id::text[], $at::bigint[]) AS u(id, at)`,
  sqlite: `SELECT ${USE} FROM (SELECT $user_id AS id, $at AS at) u`,
})

// Ten jobs of the highest cost exceed 2^53 millionths. A larger sum cannot be read, and no limit is that high.
const SPENT = 'CASE WHEN spent_micros > 9007199254740991 THEN 9007199254740991 ELSE spent_micros END AS spent_micros'

const COUNTER = { user_id: 'text', period, period_start: 'integer' } as const

export const readSpent = statement('read_spent', {
  params: COUNTER,
  row: { user_id: 'text', spent_micros: 'integer' },
  postgres: `SELECT user_id, ${SPENT}
    FROM unnest($user_id::text[], $period::text[], $period_start::bigint[]) AS t(user_id, period, period_start)
    JOIN ichido.cost_counters c USING (user_id, period, period_start)`,
  sqlite: `SELECT user_id, ${SPENT} FROM ichido.cost_counters
    WHERE user_id = $user_id AND period = $period AND period_start = $period_start`,
})

/** Takes one row for each counter, sorted. These locks are last in the lock order. */
export const addSpent = statement('add_spent', {
  params: { ...COUNTER, spent_micros: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.cost_counters AS c (user_id, period, period_start, spent_micros)
    SELECT * FROM unnest($user_id::text[], $period::text[], $period_start::bigint[], $spent_micros::bigint[])
    ON CONFLICT (user_id, period, period_start) DO UPDATE SET spent_micros = c.spent_micros + excluded.spent_micros`,
  sqlite: `INSERT INTO ichido.cost_counters AS c (user_id, period, period_start, spent_micros)
    VALUES ($user_id, $period, $period_start, $spent_micros)
    ON CONFLICT (user_id, period, period_start) DO UPDATE SET spent_micros = c.spent_micros + excluded.spent_micros`,
})

/** For a run that keeps its job's charge: a run that is canceled before it starts gives the charge back. */
const COSTS = "NOT (c.state = 'CANCELED' AND c.started_at IS NULL)"
const COSTING_RUNS = `FROM ichido.ended c WHERE c.job_id = j.id AND ${COSTS}`

/** For a job `j` that has ended: all its runs were canceled before they started. Its next run is charged again. */
export const GIVEN_BACK = `NOT EXISTS (SELECT 1 ${COSTING_RUNS})`

const REFUND = `r.user_id, r.created_at AS charged_at, j.estimated_cost_micros
    FROM ichido.ended r JOIN ichido.jobs j ON j.id = r.job_id`

/** The jobs were just canceled. The rows are the charges to give back. */
export const readRefunds = statement('read_refunds', {
  params: { job_id: 'text' },
  row: { user_id: 'text', charged_at: 'integer', estimated_cost_micros: 'integer' },
  postgres: `SELECT ${REFUND} WHERE r.job_id = ANY($job_id::uuid[]) AND r.latest AND ${GIVEN_BACK}`,
  sqlite: `SELECT ${REFUND} WHERE r.job_id = $job_id AND r.latest AND ${GIVEN_BACK}`,
})

const CHARGE = `j.id AS job_id, j.user_id, j.estimated_cost_micros,
    (SELECT c.created_at ${COSTING_RUNS} ORDER BY c.run_no LIMIT 1) AS charged_at FROM ichido.jobs j`

/** For jobs that have just ended. A job is charged by the first of its runs that keeps the charge. */
export const readCharges = statement('read_charges', {
  params: { job_id: 'text' },
  row: { job_id: 'text', user_id: 'text', estimated_cost_micros: 'integer', charged_at: 'integer' },
  postgres: `SELECT ${CHARGE} WHERE j.id = ANY($job_id::uuid[])`,
  sqlite: `SELECT ${CHARGE} WHERE j.id = $job_id`,
})

/** The user's own limits. */
export const lockQuota = statement('lock_quota', {
  params: { user_id: 'text' },
  row: {
    custom: 'flag',
    max_concurrent: 'integer?',
    cost_limit_micros: 'integer?',
    period,
    max_bytes: 'integer?',
  },
  postgres: `SELECT custom, max_concurrent, cost_limit_micros, period, max_bytes FROM ichido.quotas WHERE user_id = $user_id
    FOR NO KEY UPDATE`,
  sqlite:
    'SELECT custom, max_concurrent, cost_limit_micros, period, max_bytes FROM ichido.quotas WHERE user_id = $user_id',
})

/** The user's bytes are counted again. */
export const putQuota = statement('put_quota', {
  params: {
    user_id: 'text',
    max_concurrent: 'integer?',
    cost_limit_micros: 'integer?',
    period,
    max_bytes: 'integer?',
  },
  row: {},
  sql: `INSERT INTO ichido.quotas (${QUOTA}, max_bytes)
    VALUES ($user_id, true, $max_concurrent, $cost_limit_micros, $period, now_ms(), $max_bytes)
    ON CONFLICT (user_id) DO UPDATE SET custom = true, max_concurrent = excluded.max_concurrent,
      cost_limit_micros = excluded.cost_limit_micros, period = excluded.period, updated_at = excluded.updated_at,
      max_bytes = excluded.max_bytes, used_bytes = NULL`,
})

export const deleteQuota = statement('delete_quota', {
  params: { user_id: 'text' },
  row: { user_id: 'text' },
  sql: `UPDATE ichido.quotas SET custom = false, max_concurrent = NULL, cost_limit_micros = NULL, max_bytes = NULL,
      used_bytes = NULL, updated_at = now_ms()
    WHERE user_id = $user_id AND custom RETURNING user_id`,
})

/** A user without a row has no limits of its own. */
const CUSTOM = 'coalesce(q.custom, false) AS custom'

/** The effective limits of any user, known or not. */
export const readQuota = statement('read_quota', {
  params: { user_id: 'text' },
  row: { custom: 'flag', ...LIMITS_ROW },
  sql: `SELECT ${CUSTOM}, ${LIMITS} FROM ichido.quotas d LEFT JOIN ichido.quotas q ON q.user_id = $user_id
    WHERE d.user_id = '*'`,
})

export const USER_ROW = { user_id: 'text', created_at: 'integer?', custom: 'flag', ...LIMITS_ROW } as const

/**
 * The users after the user $1. A user had a token, has submitted or reserved, or was given limits. It reads a page of
 * each table by its key, and takes the first users of both. The maximum is part of the text: a plan that PostgreSQL
 * keeps for any maximum may sort a whole table.
 */
export function usersAfter(max: number): string {
  const page = `WHERE user_id > $1 AND user_id <> '*' ORDER BY user_id LIMIT ${max}`
  return `SELECT COALESCE(q.user_id, u.user_id) AS user_id, u.created_at, ${CUSTOM}, ${LIMITS}
      FROM (SELECT * FROM ichido.quotas ${page}) q
      FULL JOIN (SELECT * FROM ichido.users ${page}) u ON u.user_id = q.user_id
      JOIN ichido.quotas d ON d.user_id = '*'
      ORDER BY 1 LIMIT ${max}`
}
