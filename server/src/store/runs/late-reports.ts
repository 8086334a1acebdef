import { decide, parseRunError, RUN_STATES, type RunCommand, type RunState } from '../../core/run/run-state.ts'
import { EPOCH } from '../leasing/leases.sql.ts'
import { type Command, command } from '../port.ts'
import { one, type RowOf, statement, type Work } from '../statement.ts'
import { type FinishItem, type FinishOutcome, finishRunsNow, toRepeated } from './finish-runs.ts'
import { toFacts } from './run-facts.ts'
import { FACTS, FACTS_ROW, MOVES_WRITTEN } from './runs.sql.ts'

const state = { oneOf: RUN_STATES } as const

/** The run after the run `$run_id` of the same job, on SQLite. */
const AFTER = `job_id = (SELECT job_id FROM ichido.runs WHERE id = $run_id)
      AND run_no = (SELECT run_no + 1 FROM ichido.runs WHERE id = $run_id)`

const ADOPTED = (n: string, least: string) => `state = 'RUNNING', version = ${n}version + 1, attempt = ${n}attempt + 1,
        run_at = ${least}(${n}run_at, now_ms()), assigned_worker_id = $worker_id, assigned_at = now_ms(), start_id = $lease_id,
        started_at = now_ms(), lease_expires_at = now_ms(), leader_epoch = ${EPOCH}, last_event_n = ${n}last_event_n + 1`

/** The run waits, and no worker ever held it. */
const UNTOUCHED = (n: string) => `${n}state || '' = 'PENDING' AND ${n}assigned_worker_id IS NULL`

/** The leader ended the run because its lease had expired: any other end removes the lease_id, or leaves another state. */
const LOST = (p: string) =>
  `${p}id = $run_id AND ${p}state || '' = 'TIMED_OUT' AND ${p}assigned_worker_id = $worker_id AND ${p}lease_id = $lease_id`

/**
 * Takes a run, and the worker and lease that held it. It guards three things: the run timed out under this lease, the worker was
 * not revoked, and the run after it waits and was never handed to a worker. Then that run is RUNNING by this worker, under a
 * lease of its own, and `start_id` is the lease that adopted it. It is the same attempt, reported late: it costs no further retry.
 */
const adoptRun = statement('adopt_run', {
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

/** The run after this run, with the facts of both that `decide()` needs. */
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

/** How the run ended, and the state of its job now. Null instead of a run: the worker's last run. */
const readLateness = statement('read_lateness', {
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

interface LateItem extends FinishItem {
  /** Random. It names the lease under which the next run is adopted. */
  token: string
}

/**
 * A report on a run that the leader has timed out because its lease expired. If no worker ever got the job's next run, the
 * reporting worker adopts that run and ends it, in one transaction. So the run that timed out stays as it is, each run has one
 * outcome, and no other worker held the job in between.
 */
export function finishLate(item: LateItem): Command<FinishOutcome> {
  return command('finish_late', function* work(): Work<FinishOutcome> {
    const { runId, workerId, leaseId, token } = item
    const adopted = yield* one(adoptRun, { run_id: runId, worker_id: workerId, lease_id: leaseId, token })
    if (adopted === undefined) return yield* explainLate(item)
    const held = { runId: adopted.id, leaseId: adopted.lease_id, version: null, leaderEpoch: null }
    const [outcome] = yield* finishRunsNow([{ ...item, ...held }])
    if (outcome === undefined) throw new Error('A report has an outcome')
    return outcome
  })
}

function* explainLate(item: LateItem): Work<FinishOutcome> {
  const row = yield* one(readAfter, { run_id: item.runId })
  // Without a next run, the job has ended with this run.
  if (row === undefined) return { kind: 'refused', reason: 'ALREADY_ENDED' }
  const decision = decide({ ...toFacts(row), before: beforeOf(row) }, adoptionOf(item), Number.MAX_SAFE_INTEGER)
  if (decision.kind === 'repeat') return yield* toRepeated({ ...item, runId: row.id }, row)
  // A run that could be adopted now was refused before: its worker was revoked.
  return { kind: 'refused', reason: decision.kind === 'refuse' ? decision.reason : 'LEASE_LOST' }
}

function adoptionOf({ workerId, leaseId, outcomeHash }: LateItem): RunCommand {
  return { verb: 'adopt', workerId, leaseId, outcomeHash }
}

export function beforeOf(row: RowOf<typeof readAfter>) {
  return { state: row.before_state, workerId: row.before_worker_id, leaseId: row.before_lease_id }
}

/** How a worker's run ended, and the state of its job since. */
export interface Lateness {
  state: RunState
  errorCode: string | null
  leaseEndedAtMs: number | null
  /** The job's last run; null when it is this run. */
  since: { state: RunState; attempt: number; workerId: string | null } | null
}

/** Null when the worker never held the job, or not this run of it. */
export function findLateness(jobId: string, workerId: string, runId: string | null): Command<Lateness | null> {
  return command('find_lateness', function* work(): Work<Lateness | null> {
    const row = yield* one(readLateness, { job_id: jobId, worker_id: workerId, run_id: runId })
    if (row === undefined) return null
    const last = { state: row.last_state, attempt: row.last_attempt, workerId: row.last_worker_id }
    return {
      state: row.state,
      errorCode: row.error?.code ?? null,
      leaseEndedAtMs: row.lease_expires_at,
      since: row.is_last ? null : last,
    }
  })
}
