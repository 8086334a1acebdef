import { isFinal, RUN_STATES, type RunState } from '../../core/run/run-state.ts'
import { GIVEN_BACK } from '../limits/quotas.sql.ts'
import { each, type RowOf, statement, type Work } from '../statement.ts'
import { NEW_RUN } from '../submission/submit.sql.ts'

const state = { oneOf: RUN_STATES } as const

const ENDED = `r.id AS run_id, r.job_id, r.user_id, r.queue, r.priority, r.state, r.cancel_requested_at, r.error,
  j.estimated_cost_micros, ${GIVEN_BACK} AS given_back, (SELECT n.id FROM ichido.jobs n WHERE n.replaces_job_id = j.id) AS replaced_by`

/** Each job and its latest run. `given_back`: the job was canceled before it started, so its charge was given back. */
export const readLatest = statement('read_latest', {
  params: { job_id: 'text' },
  row: {
    run_id: 'text',
    job_id: 'text',
    user_id: 'text',
    queue: 'text',
    priority: 'integer',
    state,
    cancel_requested_at: 'integer?',
    error: 'text?',
    estimated_cost_micros: 'integer',
    given_back: 'flag',
    replaced_by: 'text?',
  },
  postgres: `SELECT ${ENDED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.job_id = ANY($job_id::uuid[]) AND r.latest`,
  sqlite: `SELECT ${ENDED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id WHERE r.job_id = $job_id AND r.latest`,
})

const lockRuns = statement('lock_runs', {
  params: { id: 'text' },
  row: { id: 'text' },
  postgres: 'SELECT id FROM ichido.runs WHERE id = ANY($id::uuid[]) ORDER BY id FOR UPDATE',
  sqlite: 'SELECT id FROM ichido.runs WHERE id = $id',
})

/** The runs are locked, and have ended without success. */
export const supersedeEnded = statement('supersede_ended', {
  params: { id: 'text' },
  row: {},
  postgres: 'UPDATE ichido.runs SET latest = false WHERE id = ANY($id::uuid[])',
  sqlite: 'UPDATE ichido.runs SET latest = false WHERE id = $id',
})

/**
 * `run_id` is the run that was superseded. `held_ms` is HELD_MS for a run that waits for uploads, and 0 otherwise. `created_at`
 * is the instant of the admission, by which its costs are counted. The tag is a new one: the tag of the run before may be days
 * old, and the retries of many such runs would be served before all other jobs.
 */
export const insertRetries = statement('insert_retries', {
  params: { run_id: 'text', next_id: 'text', held_ms: 'integer', tag: 'integer?', created_at: 'integer' },
  row: { run_id: 'text', job_id: 'text', state, attempt: 'integer', last_event_n: 'integer', kind: 'text' },
  postgres: `INSERT INTO ichido.runs (${NEW_RUN})
    SELECT t.next_id, r.job_id, r.run_no + 1, true, r.queue, r.kind, r.user_id, r.attempt, 0, 'PENDING', 1, r.priority,
      now_ms() + t.held, CASE WHEN t.held = 0 THEN t.tag END, t.created_at, 'NONE', r.last_event_n + 1, r.definition_id
    FROM unnest($run_id::uuid[], $next_id::uuid[], $held_ms::bigint[], $tag::bigint[], $created_at::bigint[]) AS t(run_id, next_id, held, tag, created_at)
    JOIN ichido.runs r ON r.id = t.run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind`,
  sqlite: `INSERT INTO ichido.runs (${NEW_RUN})
    SELECT $next_id, job_id, run_no + 1, true, queue, kind, user_id, attempt, 0, 'PENDING', 1, priority,
      now_ms() + $held_ms, CASE WHEN $held_ms = 0 THEN $tag END, $created_at, 'NONE', last_event_n + 1, definition_id
    FROM ichido.runs WHERE id = $run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind`,
})

/** The jobs that still lack an artifact: they were canceled before it was uploaded. */
export const readLacking = statement('read_lacking', {
  params: { job_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT DISTINCT job_id FROM ichido.artifacts
    WHERE job_id = ANY($job_id::uuid[]) AND run_id IS NULL AND state = 'awaited'`,
  sqlite: `SELECT DISTINCT job_id FROM ichido.artifacts WHERE job_id = $job_id AND run_id IS NULL AND state = 'awaited'`,
})

const HELD_AGAIN = 'ON CONFLICT (job_id) DO UPDATE SET run_id = excluded.run_id, expires_at = excluded.expires_at'

/** `ttl_ms` is the longest time between two chunks. The table may still have the run before. */
export const holdRetries = statement('hold_retries', {
  params: { run_id: 'text', job_id: 'text', ttl_ms: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.held_runs (run_id, job_id, upload_ttl_ms, expires_at)
    SELECT t.run_id, t.job_id, t.ttl, now_ms() + t.ttl FROM unnest($run_id::uuid[], $job_id::uuid[], $ttl_ms::bigint[])
      AS t(run_id, job_id, ttl) ${HELD_AGAIN}`,
  sqlite: `INSERT INTO ichido.held_runs (run_id, job_id, upload_ttl_ms, expires_at)
    VALUES ($run_id, $job_id, $ttl_ms, now_ms() + $ttl_ms) ${HELD_AGAIN}`,
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
    const runs = open.map(({ run_id }) => ({ id: run_id }))
    for (const { id } of yield* each(lockRuns, runs)) locked.add(id)
  }
}
