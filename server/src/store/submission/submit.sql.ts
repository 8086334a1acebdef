import { REQUEST_HASH_VERSION } from '../../core/keys/key.ts'
import { UNLIMITED } from '../limits/quotas.sql.ts'
import { OF_JOB, READY } from '../runs/rooms.sql.ts'
import { statement } from '../statement.ts'

const JOB_PARAMS = {
  job_id: 'text',
  kind: 'text',
  queue: 'text',
  user_id: 'text',
  payload: 'text',
  policy: 'text',
  priority: 'integer',
} as const
/** Without an `idempotency_key` there is no key. */
const KEY_PARAMS = {
  idempotency_key: 'text?',
  operation: 'text?',
  request_hash: 'text?',
  response_body: 'text?',
} as const

/** The status of the answer that is stored with a key. */
export const CREATED = 201

const KEY = `idempotency_key, user_id, operation, request_hash, hash_version, job_id, response_status, response_body,
  created_at, expires_at`

/** The first run of a job. It has the job's id. Its first event is not stored: `readEvents` makes it from the job. */
const firstRun = (
  engine: 'postgres' | 'sqlite',
) => `s.job_id, s.job_id, 1, s.queue, s.kind, s.user_id, 0, s.priority, s.run_at,
        s.fair_tag, s.created_at, s.definition_id, 0, 1, 1, ${OF_JOB(engine, 's')}, NULL, NULL, NULL`
const READY_RUNS = `INSERT INTO ichido.ready (${READY}) SELECT ${firstRun('postgres')} FROM s`

/**
 * Inserts the rows of `s`. If another transaction takes a key at the same time, the unique index fails the statement, and the
 * command runs again. ON CONFLICT took 15 % of a submit.
 */
const inserts = (
  runs: string,
) => `j AS (INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, labels, replaces_job_id,
        estimated_cost_micros, traceparent, created_at, definition_id, scheduled_for)
      SELECT job_id, kind, queue, user_id, payload, policy, priority, labels, replaces, cost, traceparent, created_at,
        definition_id, scheduled_for FROM s),
    r AS (${runs}),
    k AS (INSERT INTO ichido.idempotency_keys (${KEY})
      SELECT key, user_id, operation, hash, ${REQUEST_HASH_VERSION}, job_id, ${CREATED}, body, created_at, expires_at
      FROM s WHERE key IS NOT NULL ORDER BY key, user_id, operation)`

/** Job, first run and key in one statement. A run without a `fair_tag` is delayed. */
export const insertSubmission = statement('insert_submission', {
  params: {
    ...JOB_PARAMS,
    labels: 'text?',
    estimated_cost_micros: 'integer',
    traceparent: 'text?',
    created_at: 'integer',
    run_at: 'integer',
    fair_tag: 'integer?',
    ...KEY_PARAMS,
    expires_at: 'integer?',
    replaces_job_id: 'text?',
    definition_id: 'text?',
    scheduled_for: 'integer?',
  },
  row: {},
  postgres: `WITH s AS MATERIALIZED (
      SELECT * FROM unnest($job_id::uuid[], $kind::text[], $queue::text[], $user_id::text[], $payload::text[], $policy::text[],
        $priority::integer[], $labels::text[], $estimated_cost_micros::bigint[], $traceparent::text[], $created_at::bigint[], $run_at::bigint[], $fair_tag::bigint[], $idempotency_key::text[],
        $operation::text[], $request_hash::text[], $response_body::text[], $expires_at::bigint[], $replaces_job_id::uuid[], $definition_id::uuid[], $scheduled_for::bigint[])
      AS t(job_id, kind, queue, user_id, payload, policy, priority, labels, cost, traceparent, created_at, run_at,
        fair_tag, key, operation, hash, body, expires_at, replaces, definition_id, scheduled_for)),
    ${inserts(READY_RUNS)}
    SELECT`,
  sqlite: [
    `INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, labels, replaces_job_id,
        estimated_cost_micros, traceparent, created_at, definition_id, scheduled_for)
      VALUES ($job_id, $kind, $queue, $user_id, $payload, $policy, $priority, $labels, $replaces_job_id, $estimated_cost_micros, $traceparent, $created_at, $definition_id, $scheduled_for)`,
    `INSERT INTO ichido.ready (${READY}) SELECT ${firstRun('sqlite').replaceAll('s.', '$')}`,
    `INSERT INTO ichido.idempotency_keys (${KEY})
      SELECT $idempotency_key, $user_id, $operation, $request_hash, ${REQUEST_HASH_VERSION}, $job_id, ${CREATED}, $response_body, $created_at, $expires_at WHERE $idempotency_key IS NOT NULL`,
  ],
})

/** A placeholder in a body for the instant of acceptance. JSON does not escape it, and no name or id can contain it. */
export const NOW_PLACE = '<now>'

export const PLAIN_PARAMS = {
  ...JOB_PARAMS,
  traceparent: 'text?',
  ...KEY_PARAMS,
  ttl_ms: 'integer?',
  fair_tag: 'integer',
} as const
const PLAIN_ARRAYS = `$job_id::uuid[], $kind::text[], $queue::text[], $user_id::text[], $payload::text[],
        $policy::text[], $priority::integer[], $traceparent::text[], $idempotency_key::text[], $operation::text[],
        $request_hash::text[], $response_body::text[], $ttl_ms::bigint[], $fair_tag::bigint[]`
const PLAIN = `job_id, kind, queue, user_id, payload, policy, priority, traceparent, key, operation, hash, body, ttl,
        fair_tag`

/**
 * `u` locks the users without limits. `g` is empty if a user has limits or a key was used. `a` is the instant of acceptance. `s`
 * is not materialized: it would be a third copy of everything that was sent.
 * `given` has more arrays and columns of each job. `gate` has more locks, the condition that they give, and the lock timeout.
 */
export function submitPostgres(form: {
  given?: { arrays: string; columns: string }
  gate?: { with: string; open: string; patienceMs: number }
  runs: string
  answer: string
}): string {
  const { given, gate, runs, answer } = form
  const more = given === undefined ? '' : `, ${given.columns}`
  const patience = gate === undefined ? '' : `AND set_config('lock_timeout', '${gate.patienceMs}ms', true) IS NOT NULL`
  return `WITH t AS MATERIALIZED (
      SELECT * FROM unnest(${PLAIN_ARRAYS}${given === undefined ? '' : `, ${given.arrays}`}) AS t(${PLAIN}${more})),
    u AS MATERIALIZED (
      SELECT q.user_id FROM ichido.quotas q, ichido.quotas d
      WHERE q.user_id = ANY (ARRAY(SELECT user_id FROM t)) AND d.user_id = '*' AND ${UNLIMITED} ${patience}
      ORDER BY q.user_id FOR SHARE OF q, d),
    g AS MATERIALIZED (
      SELECT now_ms() AS now, set_config('synchronous_commit', 'on', true)
      WHERE (SELECT count(*) FROM u) = (SELECT count(DISTINCT user_id) FROM t)
        AND NOT EXISTS (SELECT FROM t JOIN ichido.idempotency_keys k
          ON k.idempotency_key = t.key AND k.user_id = t.user_id AND k.operation = t.operation)),
    ${gate === undefined ? '' : `${gate.with},`}
    a AS MATERIALIZED (
      SELECT now, to_char(to_timestamp(now / 1000.0) AT TIME ZONE 'UTC', 'YYYY-MM-DD"T"HH24:MI:SS.MS"Z"') AS iso FROM g
      ${gate === undefined ? '' : `WHERE ${gate.open}`}),
    s AS NOT MATERIALIZED (
      SELECT job_id, kind, queue, user_id, payload, policy, priority, traceparent, key, operation, hash,
        replace(body, '${NOW_PLACE}', a.iso) AS body, a.now AS created_at, a.now AS run_at, fair_tag,
        a.now + ttl AS expires_at, NULL::text AS labels, NULL::uuid AS replaces, 0::bigint AS cost,
        NULL::uuid AS definition_id, NULL::bigint AS scheduled_for${more}
      FROM t, a),
    ${inserts(runs)}
    ${answer}`
}

/**
 * Plain submissions in one statement: due now, without labels, cost or reservation, of users without limits, under new keys. It
 * answers with the instant that it wrote, or with no row if it wrote nothing. It waits for a transaction that limits a user, and
 * sees the limit. A key that is taken meanwhile fails the statement.
 */
export const submitPlain = statement('submit_plain', {
  params: PLAIN_PARAMS,
  row: { now: 'integer', iso: 'text' },
  postgres: submitPostgres({ runs: READY_RUNS, answer: 'SELECT now, iso FROM a' }),
  sqlite: [],
})

export const insertLabels = statement('insert_labels', {
  params: { name: 'text', value: 'text', job_id: 'text' },
  row: {},
  postgres:
    'INSERT INTO ichido.job_labels (name, value, job_id) SELECT * FROM unnest($name::text[], $value::text[], $job_id::uuid[])',
  sqlite: 'INSERT INTO ichido.job_labels (name, value, job_id) VALUES ($name, $value, $job_id)',
})
