import { GIVEN_BACK } from '../limits/quotas.sql.ts'
import { statement } from '../statement.ts'

/** Takes jobs that were retried or replaced, and their runs that ended; answers how long each was a dead letter. */
export const resolveDeadLetters = statement('resolve_dead_letters', {
  postgres: `DELETE FROM ichido.dead_letters d USING unnest($1::uuid[], $2::uuid[]) AS t(job_id, run_id)
    WHERE d.job_id = t.job_id AND d.run_id = t.run_id RETURNING d.job_id, now_ms() - d.dead_at AS parked_ms`,
  sqlite: `DELETE FROM ichido.dead_letters WHERE job_id = $1 AND run_id = $2
    RETURNING job_id, now_ms() - dead_at AS parked_ms`,
})

const ENDED = `r.id AS run_id, r.job_id, r.user_id, r.queue, r.priority, r.state, r.cancel_requested_at, r.error,
  j.estimated_cost_micros, ${GIVEN_BACK} AS given_back, (SELECT n.id FROM ichido.jobs n WHERE n.replaces_job_id = j.id) AS replaced_by`

/** Takes job ids; answers with what a retry needs to know of each and its latest run. */
export const readLatest = statement('read_latest', {
  postgres: `SELECT ${ENDED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.job_id = ANY($1::uuid[]) AND r.latest`,
  sqlite: `SELECT ${ENDED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id WHERE r.job_id = $1 AND r.latest`,
})

export const lockRuns = statement('lock_runs', {
  postgres: 'SELECT id FROM ichido.runs WHERE id = ANY($1::uuid[]) ORDER BY id FOR UPDATE',
  sqlite: 'SELECT id FROM ichido.runs WHERE id = $1',
})

/** Takes runs that are locked and ended without success. */
export const supersedeEnded = statement('supersede_ended', {
  postgres: 'UPDATE ichido.runs SET latest = false WHERE id = ANY($1::uuid[])',
  sqlite: 'UPDATE ichido.runs SET latest = false WHERE id = $1',
})

const NEXT = `job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version, priority, run_at, fair_tag,
  created_at, continuation_state, last_event_n, definition_id`

/**
 * Takes the superseded run, the next one, where it is held HELD_MS, else 0, a tag, and the instant that it was let in at:
 * the one that its costs are counted by. The tag is not that of the run before, which may be days old: many of them would be
 * served before everybody else.
 */
export const insertRetries = statement('insert_retries', {
  postgres: `INSERT INTO ichido.runs (id, ${NEXT})
    SELECT t.next_id, r.job_id, r.run_no + 1, true, r.queue, r.kind, r.user_id, r.attempt, 0, 'PENDING', 1, r.priority,
      now_ms() + t.held, CASE WHEN t.held = 0 THEN t.tag END, t.created_at, 'NONE', r.last_event_n + 1, r.definition_id
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[]) AS t(run_id, next_id, held, tag, created_at)
    JOIN ichido.runs r ON r.id = t.run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind`,
  sqlite: `INSERT INTO ichido.runs (id, ${NEXT})
    SELECT $2, job_id, run_no + 1, true, queue, kind, user_id, attempt, 0, 'PENDING', 1, priority,
      now_ms() + $3, CASE WHEN $3 = 0 THEN $4 END, $5, 'NONE', last_event_n + 1, definition_id
    FROM ichido.runs WHERE id = $1
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind`,
})

/** Takes job ids; answers with those that still lack an artifact: they were canceled before it came. */
export const readLacking = statement('read_lacking', {
  postgres: `SELECT DISTINCT job_id FROM ichido.artifacts
    WHERE job_id = ANY($1::uuid[]) AND run_id IS NULL AND state = 'awaited'`,
  sqlite: `SELECT DISTINCT job_id FROM ichido.artifacts WHERE job_id = $1 AND run_id IS NULL AND state = 'awaited'`,
})

const HELD_AGAIN = 'ON CONFLICT (job_id) DO UPDATE SET run_id = excluded.run_id, expires_at = excluded.expires_at'

/** Takes run, job, time in ms between chunks. The run before may still be named as held. */
export const holdRetries = statement('hold_retries', {
  postgres: `INSERT INTO ichido.held_runs (run_id, job_id, upload_ttl_ms, expires_at)
    SELECT t.run_id, t.job_id, t.ttl, now_ms() + t.ttl FROM unnest($1::uuid[], $2::uuid[], $3::bigint[])
      AS t(run_id, job_id, ttl) ${HELD_AGAIN}`,
  sqlite: `INSERT INTO ichido.held_runs (run_id, job_id, upload_ttl_ms, expires_at)
    VALUES ($1, $2, $3, now_ms() + $3) ${HELD_AGAIN}`,
})
