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
