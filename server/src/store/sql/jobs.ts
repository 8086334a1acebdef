import { REQUEST_HASH_VERSION } from '../../core/request-hash.ts'
import { statement } from '../statement.ts'

/** The status of the answer that is stored with a key. */
export const CREATED = 201

const KEY = `idempotency_key, user_id, operation, request_hash, hash_version, job_id, response_status, response_body,
  created_at, expires_at`

/**
 * One row a job: 1 job, 2 run, 3 kind, 4 queue, 5 user, 6 payload, 7 policy, 8 priority, 9 labels, 10 estimated cost,
 * 11 traceparent, 12 created_at, 13 run_at, 14 fair_tag (null: delayed), 15 key (null: none), 16 operation,
 * 17 request hash, 18 body, 19 key's end, 20 replaced job.
 * Job, first run, first event and key in one statement. A key that another transaction takes at the same time fails the
 * statement by its unique index, and the command is run again; asking each time (ON CONFLICT) took 15 % of a submit.
 */
export const insertSubmission = statement('insert_submission', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT * FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
        $8::integer[], $9::text[], $10::bigint[], $11::text[], $12::bigint[], $13::bigint[], $14::bigint[], $15::text[],
        $16::text[], $17::text[], $18::text[], $19::bigint[], $20::uuid[])
      AS t(job_id, run_id, kind, queue, user_id, payload, policy, priority, labels, cost, traceparent, created_at, run_at,
        fair_tag, key, operation, hash, body, expires_at, replaces)),
    j AS (INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, labels, replaces_job_id,
        estimated_cost_micros, traceparent, created_at)
      SELECT job_id, kind, queue, user_id, payload, policy, priority, labels, replaces, cost, traceparent, created_at FROM t),
    r AS (INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
        priority, run_at, fair_tag, created_at, continuation_state, last_event_n)
      SELECT run_id, job_id, 1, true, queue, kind, user_id, 0, 0, 'PENDING', 1,
        priority, run_at, fair_tag, created_at, 'NONE', 1 FROM t),
    e AS (INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT job_id, 1, 'run', 1, kind, '{"state":"PENDING"}', created_at FROM t)
    INSERT INTO ichido.idempotency_keys (${KEY})
    SELECT key, user_id, operation, hash, ${REQUEST_HASH_VERSION}, job_id, ${CREATED}, body, created_at, expires_at
    FROM t WHERE key IS NOT NULL ORDER BY key, user_id, operation`,
  sqlite: [
    `INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, labels, replaces_job_id,
        estimated_cost_micros, traceparent, created_at)
      VALUES ($1, $3, $4, $5, $6, $7, $8, $9, $20, $10, $11, $12)`,
    `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
        priority, run_at, fair_tag, created_at, continuation_state, last_event_n)
      VALUES ($2, $1, 1, true, $4, $3, $5, 0, 0, 'PENDING', 1, $8, $13, $14, $12, 'NONE', 1)`,
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      VALUES ($1, 1, 'run', 1, $3, '{"state":"PENDING"}', $12)`,
    `INSERT INTO ichido.idempotency_keys (${KEY})
      SELECT $15, $5, $16, $17, ${REQUEST_HASH_VERSION}, $1, ${CREATED}, $18, $12, $19 WHERE $15 IS NOT NULL`,
  ],
})

/** Takes name, value, job. */
export const insertLabels = statement('insert_labels', {
  postgres:
    'INSERT INTO ichido.job_labels (name, value, job_id) SELECT * FROM unnest($1::text[], $2::text[], $3::uuid[])',
  sqlite: 'INSERT INTO ichido.job_labels (name, value, job_id) VALUES ($1, $2, $3)',
})

export const JOB_COLUMNS = `j.id AS job_id, j.kind, j.queue, j.user_id, j.payload, j.policy, j.priority, j.labels,
  j.replaces_job_id, j.estimated_cost_micros, j.traceparent, j.created_at, r.state, r.run_at, r.attempt, r.retry_count,
  r.started_at, r.finished_at, r.cancel_requested_at, r.error`

/** Takes job ids; answers with each job and its latest run. */
export const readJobs = statement('read_jobs', {
  postgres: `SELECT ${JOB_COLUMNS} FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = ANY($1::uuid[])`,
  sqlite: `SELECT ${JOB_COLUMNS} FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE j.id = $1`,
})

export const readRuns = statement(
  'read_runs',
  `SELECT id, run_no, state, version, attempt, retry_count, run_at, created_at, assigned_worker_id, assigned_at,
      lease_expires_at, started_at, finished_at, cancel_requested_at, error
    FROM ichido.runs WHERE job_id = $1 ORDER BY run_no`,
)

export const readResult = statement(
  'read_result',
  `SELECT r.state, r.error, r.attempt, j.user_id, s.run_id, s.result, s.summary_text, s.freqs_csv, s.meta, s.cost_micros,
      r.finished_at
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    LEFT JOIN ichido.results s ON s.run_id = r.id
    WHERE j.id = $1`,
)

/** What a metric or a page tells at a glance. */
export const countByState = statement(
  'count_by_state',
  `SELECT state, count(*) AS count FROM ichido.runs WHERE latest GROUP BY state`,
)
