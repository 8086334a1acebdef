import { statement } from '../statement.ts'

export const DEAD_LETTER_COLUMNS = `d.job_id, d.run_id, d.queue, d.kind, d.user_id, d.error_code, d.error_message,
  d.retry_count, d.dead_at, d.redrive_id`

export const readDeadLetter = statement(
  'read_dead_letter',
  `SELECT ${DEAD_LETTER_COLUMNS} FROM ichido.dead_letters d WHERE d.job_id = $1`,
)

/** Takes jobs that were retried or replaced; answers how long each of them was a dead letter. */
export const resolveDeadLetters = statement('resolve_dead_letters', {
  postgres: `DELETE FROM ichido.dead_letters WHERE job_id = ANY($1::uuid[])
    RETURNING job_id, now_ms() - dead_at AS parked_ms`,
  sqlite: 'DELETE FROM ichido.dead_letters WHERE job_id = $1 RETURNING job_id, now_ms() - dead_at AS parked_ms',
})

export const countDeadLetters = statement('count_dead_letters', 'SELECT count(*) AS count FROM ichido.dead_letters')

const ENDED = `r.id AS run_id, r.job_id, r.run_no, r.user_id, r.queue, r.state, r.started_at, r.cancel_requested_at, r.error,
  j.estimated_cost_micros, j.created_at`

/** Takes job ids; answers with what a retry needs to know of each and its latest run. */
export const readLatest = statement('read_latest', {
  postgres: `SELECT ${ENDED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.job_id = ANY($1::uuid[]) AND r.latest`,
  sqlite: `SELECT ${ENDED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id WHERE r.job_id = $1 AND r.latest`,
})

/** Takes runs. Guards: each is its job's latest and ended without success. Of two retries of a job, one passes here. */
export const supersedeEnded = statement('supersede_ended', {
  postgres: `WITH l AS MATERIALIZED (
      SELECT id FROM ichido.runs WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE)
    UPDATE ichido.runs r SET latest = false FROM l
    WHERE r.id = l.id AND r.latest AND r.state || '' IN ('FAILED', 'TIMED_OUT', 'CANCELED') RETURNING r.id`,
  sqlite: `UPDATE ichido.runs SET latest = false
    WHERE id = $1 AND latest AND state IN ('FAILED', 'TIMED_OUT', 'CANCELED') RETURNING id`,
})

const NEXT = `job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version, priority, run_at, fair_tag,
  created_at, continuation_state, last_event_n`

/**
 * Takes the superseded run and the next one. Its turn is counted from now: the tag of the run before may be days old, and
 * many of them would be served before everybody else.
 */
export const insertRetries = statement('insert_retries', {
  postgres: `INSERT INTO ichido.runs (id, ${NEXT})
    SELECT t.next_id, r.job_id, r.run_no + 1, true, r.queue, r.kind, r.user_id, r.attempt, 0, 'PENDING', 1, r.priority,
      now_ms(), now_ms(), now_ms(), 'NONE', r.last_event_n + 1
    FROM unnest($1::uuid[], $2::uuid[]) AS t(run_id, next_id) JOIN ichido.runs r ON r.id = t.run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind`,
  sqlite: `INSERT INTO ichido.runs (id, ${NEXT})
    SELECT $2, job_id, run_no + 1, true, queue, kind, user_id, attempt, 0, 'PENDING', 1, priority,
      now_ms(), now_ms(), now_ms(), 'NONE', last_event_n + 1
    FROM ichido.runs WHERE id = $1
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind`,
})
