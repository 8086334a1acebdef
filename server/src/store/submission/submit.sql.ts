import { REQUEST_HASH_VERSION } from '../../core/keys/request-hash.ts'
import { UNLIMITED } from '../limits/quotas.sql.ts'
import { statement } from '../statement.ts'

/** The status of the answer that is stored with a key. */
export const CREATED = 201

const KEY = `idempotency_key, user_id, operation, request_hash, hash_version, job_id, response_status, response_body,
  created_at, expires_at`

/** Of a new run. */
export const NEW_RUN = `id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version, priority, run_at, fair_tag,
        created_at, continuation_state, last_event_n, definition_id`
const PENDING_RUNS = `INSERT INTO ichido.runs (${NEW_RUN})
      SELECT run_id, job_id, 1, true, queue, kind, user_id, 0, 0, 'PENDING', 1,
        priority, run_at, fair_tag, created_at, 'NONE', 1, definition_id FROM s`

/**
 * Of the rows of `s`. A key that another transaction takes at the same time fails the statement by its unique index, and the
 * command is run again; asking each time (ON CONFLICT) took 15 % of a submit.
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

/**
 * One row a job: 1 job, 2 run, 3 kind, 4 queue, 5 user, 6 payload, 7 policy, 8 priority, 9 labels, 10 estimated cost,
 * 11 traceparent, 12 created_at, 13 run_at, 14 fair_tag (null: delayed), 15 key (null: none), 16 operation,
 * 17 request hash, 18 body, 19 key's end, 20 replaced job, 21 definition, 22 tick.
 * Job, first run and key in one statement. The first event is not stored: `readEvents` tells it from the job.
 */
export const insertSubmission = statement('insert_submission', {
  postgres: `WITH s AS MATERIALIZED (
      SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
        $8::integer[], $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[],
        $16::text[], $17::text[], $18::text[], $19::bigint[], $20::uuid[], $21::uuid[], $22::bigint[])
      AS t(job_id, run_id, kind, queue, user_id, payload, policy, priority, labels, cost, traceparent, created_at, run_at,
        fair_tag, key, operation, hash, body, expires_at, replaces, definition_id, scheduled_for)),
    ${inserts(PENDING_RUNS)}
    SELECT`,
  sqlite: [
    `INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, labels, replaces_job_id,
        estimated_cost_micros, traceparent, created_at, definition_id, scheduled_for)
      VALUES ($1, $3, $4, $5, $6, $7, $8, $9, $20, $10, $11, $12, $21, $22)`,
    `INSERT INTO ichido.runs (${NEW_RUN})
      VALUES ($2, $1, 1, true, $4, $3, $5, 0, 0, 'PENDING', 1, $8, $13, $14, $12, 'NONE', 1, $21)`,
    `INSERT INTO ichido.idempotency_keys (${KEY})
      SELECT $15, $5, $16, $17, ${REQUEST_HASH_VERSION}, $1, ${CREATED}, $18, $12, $19 WHERE $15 IS NOT NULL`,
  ],
})

/** Stands in a body for the instant of acceptance. No name or id can contain it. */
export const NOW_PLACE = '\\u0001'

/** What a plain submission is made of. */
const PLAIN_ARRAYS = `$1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[], $8::integer[],
        $9::text[], $10::text[], $11::text[], $12::text[], $13::text[], $14::bigint[], $15::bigint[]`
const PLAIN = `job_id, run_id, kind, queue, user_id, payload, policy, priority, traceparent, key, operation, hash, body, ttl,
        fair_tag`

/**
 * `u` keeps the users without limits as they are, `g` is empty when there are others or a key was used, `a` is the instant.
 * `s` is put together anew by whoever reads it: kept, it would be a third copy of all that was sent.
 * `given`: what else each job comes with; `gate`: what else must hold, the condition that it gives, and how long any lock is
 * waited for.
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
      SELECT job_id, run_id, kind, queue, user_id, payload, policy, priority, traceparent, key, operation, hash,
        replace(body, '${NOW_PLACE}', a.iso) AS body, a.now AS created_at, a.now AS run_at, fair_tag,
        a.now + ttl AS expires_at, NULL::text AS labels, NULL::uuid AS replaces, 0::bigint AS cost,
        NULL::uuid AS definition_id, NULL::bigint AS scheduled_for${more}
      FROM t, a),
    ${inserts(runs)}
    ${answer}`
}

/**
 * The whole of plain submissions in one statement: due at once, without labels, cost or reservation, of users without
 * limits, under keys that nobody used. Then it answers with the instant that it wrote; else, with nothing written, with
 * no row. A user that is given a limit meanwhile is waited for and seen; a key that is taken meanwhile fails it.
 * One row a job: 1 job, 2 run, 3 kind, 4 queue, 5 user, 6 payload, 7 policy, 8 priority, 9 traceparent, 10 key (null:
 * none), 11 operation, 12 request hash, 13 body, 14 key's life, 15 fair_tag.
 */
export const submitPlain = statement('submit_plain', {
  postgres: submitPostgres({ runs: PENDING_RUNS, answer: 'SELECT now, iso FROM a' }),
  sqlite: [],
})

/** Takes name, value, job. */
export const insertLabels = statement('insert_labels', {
  postgres:
    'INSERT INTO ichido.job_labels (name, value, job_id) SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[])',
  sqlite: 'INSERT INTO ichido.job_labels (name, value, job_id) VALUES ($1, $2, $3)',
})
