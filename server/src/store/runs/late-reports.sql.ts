import { RUN_STATES } from '../../core/run/run-state.ts'
import { EPOCH } from '../leasing/leases.sql.ts'
import { statement } from '../statement.ts'
import { parseRunError } from './run-error.ts'
import { FACTS, FACTS_ROW, MOVES_WRITTEN } from './runs.sql.ts'

const state = { oneOf: RUN_STATES } as const

/** The run after the run `$run_id` of the same job, on SQLite. */
const AFTER = `job_id = (SELECT job_id FROM ichido.runs WHERE id = $run_id)
      AND run_no = (SELECT run_no + 1 FROM ichido.runs WHERE id = $run_id)`

const ADOPTED = (n: string, least: string) => `state = 'RUNNING', version = ${n}version + 1, attempt = ${n}attempt + 1,
        run_at = ${least}(${n}run_at, now_ms()), assigned_worker_id = $worker_id, assigned_at = now_ms(), start_id = $lease_id,
        started_at = now_ms(), lease_expires_at = now_ms(), leader_epoch = ${EPOCH}, last_event_n = ${n}last_event_n + 1`

/** It waits, and nobody ever had it. */
const UNTOUCHED = (n: string) => `${n}state || '' = 'PENDING' AND ${n}assigned_worker_id IS NULL`

/** The leader ended it because its lease had lapsed: any other end takes the lease_id away, or leaves another state. */
const LOST = (p: string) =>
  `${p}id = $run_id AND ${p}state || '' = 'TIMED_OUT' AND ${p}assigned_worker_id = $worker_id AND ${p}lease_id = $lease_id`

/**
 * Takes the run, and the worker and lease that held it. Guards: the run timed out under this lease, the worker was not
 * revoked, and the run after it waits and was never handed to any worker. That run is then RUNNING by this worker, under a
 * lease of its own, and `start_id` says which lease it was adopted by. It is the same try, told late: it costs no further retry.
 */
export const adoptRun = statement('adopt_run', {
  params: { run_id: 'text', worker_id: 'text', lease_id: 'text', token: 'text' },
  row: { id: 'text', lease_id: 'text' },
  postgres: `WITH w AS MATERIALIZED (
      SELECT worker_id FROM ichido.workers WHERE worker_id = $worker_id AND revoked_at IS NULL FOR KEY SHARE),
    m AS (UPDATE ichido.runs n SET ${ADOPTED('n.', 'least')}, lease_id = n.id::text || '.' || $token::text,
        retry_count = least(n.retry_count, p.retry_count)
      FROM ichido.runs p JOIN w ON w.worker_id = p.assigned_worker_id
      WHERE ${LOST('p.')} AND n.job_id = p.job_id AND n.run_no = p.run_no + 1 AND ${UNTOUCHED('n.')}
      RETURNING n.id, n.lease_id, n.job_id, n.state, n.attempt, n.last_event_n),
    e AS (${MOVES_WRITTEN})
    SELECT id, lease_id FROM m`,
  sqlite: [
    `UPDATE ichido.runs SET ${ADOPTED('', 'min')}, lease_id = id || '.' || $token,
        retry_count = min(retry_count, (SELECT p.retry_count FROM ichido.runs p WHERE p.id = $run_id))
      WHERE ${AFTER} AND ${UNTOUCHED('')} AND EXISTS (SELECT 1 FROM ichido.runs p WHERE ${LOST('p.')})
        AND EXISTS (SELECT 1 FROM ichido.workers WHERE worker_id = $worker_id AND revoked_at IS NULL)`,
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT job_id, last_event_n, 'run', last_event_n, '', '{"state":"' || state || '","attempt":' || attempt || '}', now_ms()
      FROM ichido.runs WHERE ${AFTER} AND changes() = 1`,
    `SELECT id, lease_id FROM ichido.runs WHERE ${AFTER} AND changes() = 1`,
  ],
})

/** The run after this one, with what `decide()` needs of both. */
export const readAfter = statement('read_after', {
  params: { run_id: 'text' },
  row: { ...FACTS_ROW, before_state: state, before_worker_id: 'text?', before_lease_id: 'text?' },
  sql: `SELECT ${FACTS.replaceAll(/\w+/g, 'n.$&')}, p.state AS before_state, p.assigned_worker_id AS before_worker_id,
      p.lease_id AS before_lease_id
    FROM ichido.runs p JOIN ichido.runs n ON n.job_id = p.job_id AND n.run_no = p.run_no + 1 WHERE p.id = $run_id`,
})

const LATENESS = `SELECT p.id = l.id AS is_last, p.state, p.error, p.lease_expires_at, l.state AS last_state, l.attempt AS last_attempt,
      l.assigned_worker_id AS last_worker_id
    FROM ichido.runs p JOIN ichido.runs l ON l.job_id = p.job_id AND l.latest
    WHERE p.job_id = $job_id AND p.assigned_worker_id = $worker_id`

/** How the run ended, and what became of the job. Null instead of a run: the worker's last one. */
export const readLateness = statement('read_lateness', {
  params: { job_id: 'text', worker_id: 'text', run_id: 'text?' },
  row: {
    is_last: 'flag',
    state: state,
    error: { json: parseRunError },
    lease_expires_at: 'integer?',
    last_state: state,
    last_attempt: 'integer',
    last_worker_id: 'text?',
  },
  postgres: `${LATENESS} AND ($run_id::text IS NULL OR p.id::text = $run_id) ORDER BY p.run_no DESC LIMIT 1`,
  sqlite: `${LATENESS} AND ($run_id IS NULL OR p.id = $run_id) ORDER BY p.run_no DESC LIMIT 1`,
})
