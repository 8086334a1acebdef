import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { GIVEN_BACK } from '../limits/quotas.sql.ts'
import { JOB_IN_ROOMS, latest, STATE, sinceHeld, state } from '../runs/rooms.sql.ts'
import { each, type RowOf, statement, type Work } from '../statement.ts'

const LATEST = `j.id AS job_id, ${latest('run_id')} AS run_id, e.run_no AS ended_run_no, j.user_id, j.queue, j.priority, ${STATE} AS state,
  ${sinceHeld('cancel_requested_at')} AS cancel_requested_at, j.estimated_cost_micros, ${GIVEN_BACK} AS given_back,
  (SELECT n.id FROM ichido.jobs n WHERE n.replaces_job_id = j.id) AS replaced_by
  FROM ${JOB_IN_ROOMS}`

/** Each job and its latest run. `given_back`: the job was canceled before it started, so its charge was given back. */
export const readLatest = statement('read_latest', {
  params: { job_id: 'text' },
  row: {
    job_id: 'text',
    run_id: 'text',
    ended_run_no: 'integer?',
    user_id: 'text',
    queue: 'text',
    priority: 'integer',
    state,
    cancel_requested_at: 'integer?',
    estimated_cost_micros: 'integer',
    given_back: 'flag',
    replaced_by: 'text?',
  },
  postgres: `SELECT ${LATEST} WHERE j.id = ANY($job_id::uuid[])`,
  sqlite: `SELECT ${LATEST} WHERE j.id = $job_id`,
})

const lockLatestEnded = statement('lock_latest_ended', {
  params: { job_id: 'text' },
  row: { run_id: 'text' },
  postgres: 'SELECT run_id FROM ichido.ended WHERE job_id = ANY($job_id::uuid[]) AND latest ORDER BY job_id FOR UPDATE',
  sqlite: 'SELECT run_id FROM ichido.ended WHERE job_id = $job_id AND latest',
})

const ofRun = (room: string) =>
  `SELECT r.job_id FROM ichido.${room} r WHERE r.job_id = t.job_id AND r.run_id = t.run_id`
const OWN_RUNS = ['ready', 'held', 'ended'].map(ofRun).join(' UNION ALL ')

/** The jobs that have this run, whichever room it is in. */
export const readJobsOfRuns = statement('read_jobs_of_runs', {
  params: { job_id: 'text', run_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT r.job_id FROM unnest($job_id::uuid[], $run_id::uuid[]) AS t(job_id, run_id) CROSS JOIN LATERAL (${OWN_RUNS}) r`,
  sqlite: OWN_RUNS.replaceAll('t.', '$'),
})

/** The jobs that still lack an artifact: they were canceled before it was uploaded. */
export const readLacking = statement('read_lacking', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT DISTINCT job_id FROM ichido.artifacts
    WHERE job_id = ANY($job_id::uuid[]) AND run_id IS NULL AND state = 'awaited'`,
  sqlite: `SELECT DISTINCT job_id FROM ichido.artifacts WHERE job_id = $job_id AND run_id IS NULL AND state = 'awaited'`,
})

/** `ttl_ms` is the longest time between two chunks. The table may still have the wait of the run before. */
export const awaitUploadsAgain = statement('await_uploads_again', {
  params: { job_id: 'text', ttl_ms: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.upload_waits (job_id, upload_ttl_ms, expires_at)
    SELECT t.job_id, t.ttl, now_ms() + t.ttl FROM unnest($job_id::uuid[], $ttl_ms::bigint[]) AS t(job_id, ttl)
    ON CONFLICT (job_id) DO UPDATE SET expires_at = excluded.expires_at`,
  sqlite: `INSERT INTO ichido.upload_waits (job_id, upload_ttl_ms, expires_at) VALUES ($job_id, $ttl_ms, now_ms() + $ttl_ms)
    ON CONFLICT (job_id) DO UPDATE SET expires_at = excluded.expires_at`,
})

/** For jobs that were retried or replaced, with the run that had ended. `parked_ms` is how long each was a dead letter. */
export const resolveDeadLetters = statement('resolve_dead_letters', {
  params: { job_id: 'text', run_id: 'text' },
  row: { job_id: 'text', parked_ms: 'integer' },
  postgres: `DELETE FROM ichido.dead_letters d USING unnest($job_id::uuid[], $run_id::uuid[]) AS t(job_id, run_id)
    WHERE d.job_id = t.job_id AND d.run_id = t.run_id RETURNING d.job_id, now_ms() - d.dead_at AS parked_ms`,
  sqlite: `DELETE FROM ichido.dead_letters WHERE job_id = $job_id AND run_id = $run_id
    RETURNING job_id, now_ms() - dead_at AS parked_ms`,
})

/** Why a job can be neither retried nor replaced. */
export type EndedRefusal =
  | { reason: 'NOT_FOUND' }
  | { reason: 'NOT_ENDED'; state: RunState; canceling: boolean }
  | { reason: 'ALREADY_ENDED'; state: RunState }
  | { reason: 'ALREADY_REPLACED'; byJobId: string }

export type LatestRun = RowOf<typeof readLatest>

/** Null: the job can be retried or replaced. */
export function refusalOf(latest: LatestRun | undefined): EndedRefusal | null {
  if (latest === undefined) return { reason: 'NOT_FOUND' }
  const { state, cancel_requested_at, replaced_by: byJobId } = latest
  if (!isFinal(state)) return { reason: 'NOT_ENDED', state, canceling: cancel_requested_at !== null }
  if (state === 'SUCCEEDED') return { reason: 'ALREADY_ENDED', state }
  return byJobId === null ? null : { reason: 'ALREADY_REPLACED', byJobId }
}

/**
 * Locks the latest runs of the jobs that can be retried or replaced: one transaction at a time has such a job. A later statement
 * reads them again, because the statement that locks does not see what the transaction before it wrote.
 */
export function* lockEnded(jobIds: Iterable<string>): Work<Map<string, LatestRun>> {
  const ids = [...new Set(jobIds)].map((job_id) => ({ job_id }))
  const locked = new Set<string>()
  for (;;) {
    const rows = yield* each(readLatest, ids)
    const open = rows.filter((row) => refusalOf(row) === null && !locked.has(row.run_id))
    if (open.length === 0) return new Map(rows.map((row) => [row.job_id, row]))
    const jobs = open.map(({ job_id }) => ({ job_id }))
    for (const { run_id } of yield* each(lockLatestEnded, jobs)) locked.add(run_id)
  }
}
