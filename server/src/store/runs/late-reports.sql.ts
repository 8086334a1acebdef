import { EPOCH } from '../leasing/leases.sql.ts'
import { statement } from '../statement.ts'
import { FACTS, MOVES_WRITTEN } from './runs.sql.ts'

/** The run after the run $1 of the same job, on SQLite. */
const AFTER = `job_id = (SELECT job_id FROM ichido.runs WHERE id = $1)
      AND run_no = (SELECT run_no + 1 FROM ichido.runs WHERE id = $1)`

const ADOPTED = (n: string, least: string) => `state = 'RUNNING', version = ${n}version + 1, attempt = ${n}attempt + 1,
        run_at = ${least}(${n}run_at, now_ms()), assigned_worker_id = $2, assigned_at = now_ms(), start_id = $3,
        started_at = now_ms(), lease_expires_at = now_ms(), leader_epoch = ${EPOCH}, last_event_n = ${n}last_event_n + 1`

/** It waits, and nobody ever had it. */
const UNTOUCHED = (n: string) => `${n}state || '' = 'PENDING' AND ${n}assigned_worker_id IS NULL`

/** The leader ended it because its lease had lapsed: any other end takes the lease_id away, or leaves another state. */
const LOST = (p: string) =>
  `${p}id = $1 AND ${p}state || '' = 'TIMED_OUT' AND ${p}assigned_worker_id = $2 AND ${p}lease_id = $3`

/**
 * Takes a run, the worker and lease that held it, and a token. Guards: the run timed out under this lease, the worker was not
 * revoked, and the run after it waits and was never handed to anybody. That run is then RUNNING by this worker, under a lease
 * of its own, and `start_id` says which lease it was adopted by. It is the same try, told late: it costs no further retry.
 */
export const adoptRun = statement('adopt_run', {
  postgres: `WITH w AS MATERIALIZED (
      SELECT worker_id FROM ichido.workers WHERE worker_id = $2 AND revoked_at IS NULL FOR KEY SHARE),
    m AS (UPDATE ichido.runs n SET ${ADOPTED('n.', 'least')}, lease_id = n.id::text || '.' || $4::text,
        retry_count = least(n.retry_count, p.retry_count)
      FROM ichido.runs p JOIN w ON w.worker_id = p.assigned_worker_id
      WHERE ${LOST('p.')} AND n.job_id = p.job_id AND n.run_no = p.run_no + 1 AND ${UNTOUCHED('n.')}
      RETURNING n.id, n.lease_id, n.job_id, n.state, n.attempt, n.last_event_n),
    e AS (${MOVES_WRITTEN})
    SELECT id, lease_id FROM m`,
  sqlite: [
    `UPDATE ichido.runs SET ${ADOPTED('', 'min')}, lease_id = id || '.' || $4,
        retry_count = min(retry_count, (SELECT p.retry_count FROM ichido.runs p WHERE p.id = $1))
      WHERE ${AFTER} AND ${UNTOUCHED('')} AND EXISTS (SELECT 1 FROM ichido.runs p WHERE ${LOST('p.')})
        AND EXISTS (SELECT 1 FROM ichido.workers WHERE worker_id = $2 AND revoked_at IS NULL)`,
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT job_id, last_event_n, 'run', last_event_n, '', '{"state":"' || state || '","attempt":' || attempt || '}', now_ms()
      FROM ichido.runs WHERE ${AFTER} AND changes() = 1`,
    `SELECT id, lease_id FROM ichido.runs WHERE ${AFTER} AND changes() = 1`,
  ],
})

/** Takes a run: the run after it, with what `decide()` needs of both. */
export const readAfter = statement(
  'read_after',
  `SELECT ${FACTS.replaceAll(/\w+/g, 'n.$&')}, p.state AS before_state, p.assigned_worker_id AS before_worker_id,
      p.lease_id AS before_lease_id
    FROM ichido.runs p JOIN ichido.runs n ON n.job_id = p.job_id AND n.run_no = p.run_no + 1 WHERE p.id = $1`,
)

const LATENESS = `SELECT p.id = l.id AS is_last, p.state, p.error, p.lease_expires_at, l.state AS last_state, l.attempt AS last_attempt,
      l.assigned_worker_id AS last_worker_id
    FROM ichido.runs p JOIN ichido.runs l ON l.job_id = p.job_id AND l.latest
    WHERE p.job_id = $1 AND p.assigned_worker_id = $2`

/** Takes a job, a worker and a run (or null: the worker's last one): how that run ended, and what became of the job. */
export const readLateness = statement('read_lateness', {
  postgres: `${LATENESS} AND ($3::text IS NULL OR p.id::text = $3) ORDER BY p.run_no DESC LIMIT 1`,
  sqlite: `${LATENESS} AND ($3 IS NULL OR p.id = $3) ORDER BY p.run_no DESC LIMIT 1`,
})
