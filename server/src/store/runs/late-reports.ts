import { decide, parseRunError, type RunCommand, type RunState } from '../../core/run/run-state.ts'
import { type Command, command } from '../port.ts'
import { one, type RowOf, statement, type Work } from '../statement.ts'
import { type FinishItem, type FinishOutcome, finishRunsNow, toRepeated } from './finish-runs.ts'
import {
  EPOCH,
  HELD,
  HELD_STATE,
  JOB_IN_ROOMS,
  latest,
  MOVES_WRITTEN,
  moveSqlite,
  of,
  STATE,
  state,
} from './rooms.sql.ts'
import { factsOf, leaseIdOf, toFacts, tokenOf } from './run-facts.ts'
import { FACTS, FACTS_ROW } from './runs.sql.ts'

/** The next run `r` as the worker's that held the run `p` before. It is due now, and begins and ends in this transaction. */
const adoptedRow = (least: string) => {
  const columns: Record<string, string> = {
    retry_count: `${least}(r.retry_count, p.retry_count)`,
    run_at: `${least}(r.run_at, now_ms())`,
    attempt: 'r.attempt + 1',
    version: 'r.version + 1',
    n: 'r.n + 1',
    worker_id: '$worker_id',
    poll_id: 'NULL',
    token: '$token',
    assigned_at: 'now_ms()',
    lease_expires_at: 'now_ms()',
    lease_ttl_ms: '0',
    continuation_ms: '0',
    start_id: '$adopting_lease',
    started_at: 'now_ms()',
    leader_epoch: EPOCH,
    deadline_at: 'NULL',
    cancel_requested_at: 'NULL',
    error: 'NULL',
  }
  return HELD.replaceAll(/\w+/g, (column) => columns[column] ?? `r.${column}`)
}

/** The leader ended the run because its lease had expired: any other end removes the token, or leaves another state. */
const LOST = `p.job_id = $job_id AND p.worker_id = $worker_id AND p.token = $lost_token AND p.state = 'TIMED_OUT'`

/** The run waits, and no worker ever held it. */
const UNTOUCHED = 'r.job_id = p.job_id AND r.run_no = p.run_no + 1 AND r.worker_id IS NULL'

const NOT_REVOKED = 'ichido.workers WHERE worker_id = $worker_id AND revoked_at IS NULL'

/**
 * Takes the worker and lease that held a run of the job. It guards three things: the run timed out under this lease, the worker was
 * not revoked, and the run after it waits and was never handed to a worker. Then that run is RUNNING by this worker, under a
 * lease of its own, and `start_id` is the lease that adopted it. It is the same attempt, reported late: it costs no further retry.
 */
const adoptRun = statement('adopt_run', {
  params: { job_id: 'text', worker_id: 'text', lost_token: 'text', adopting_lease: 'text', token: 'text' },
  row: { job_id: 'text' },
  postgres: `WITH w AS MATERIALIZED (SELECT worker_id FROM ${NOT_REVOKED} FOR KEY SHARE),
    d AS (DELETE FROM ichido.ready r USING ichido.ended p JOIN w ON w.worker_id = p.worker_id
      WHERE ${LOST} AND ${UNTOUCHED} RETURNING ${of('r', 'job_id, run_id, run_no, queue, kind, user_id, priority')},
        ${of('r', 'run_at, fair_tag, created_at, definition_id, attempt, version, n')}, r.retry_count, p.retry_count AS retries_before),
    m AS (INSERT INTO ichido.held (${HELD})
      SELECT ${adoptedRow('least').replace('p.retry_count', 'r.retries_before')} FROM d r
      RETURNING job_id, attempt, n, 'RUNNING' AS state),
    e AS (${MOVES_WRITTEN})
    SELECT job_id FROM m`,
  sqlite: moveSqlite(
    'ready',
    'held',
    `INSERT INTO ichido.held (${HELD}) SELECT ${adoptedRow('min')} FROM ichido.ended p JOIN ichido.ready r ON ${UNTOUCHED}
      WHERE ${LOST} AND EXISTS (SELECT 1 FROM ${NOT_REVOKED})`,
  ),
})

const AFTER = `p.state AS before_state, p.worker_id AS before_worker_id, p.token AS before_token
  FROM ichido.ended p`
const NEXT = 'r.job_id = p.job_id AND r.run_no = p.run_no + 1 WHERE p.job_id = $job_id AND p.token = $token'

/** The run after the run that had this lease, with the facts of both that `decide()` needs. */
export const readAfter = statement('read_after', {
  params: { job_id: 'text', token: 'text' },
  row: { ...FACTS_ROW, before_state: state, before_worker_id: 'text?', before_token: 'text?' },
  sql: `SELECT ${FACTS.ready}, ${AFTER} JOIN ichido.ready r ON ${NEXT}
    UNION ALL SELECT ${FACTS.held}, ${AFTER} JOIN ichido.held r ON ${NEXT}
    UNION ALL SELECT ${FACTS.ended}, ${AFTER} JOIN ichido.ended r ON ${NEXT}`,
})

const HAD = 'SELECT r.run_no, r.token'
const OF_WORKER = 'WHERE r.job_id = $job_id AND r.worker_id = $worker_id'
const LATENESS = (param: (name: string) => string) => `WITH p AS (
      ${HAD}, 'ORPHANED' AS state, CAST(NULL AS text) AS error, CAST(NULL AS bigint) AS lease_expires_at FROM ichido.ready r ${OF_WORKER}
      UNION ALL ${HAD}, ${HELD_STATE('r')}, r.error, r.lease_expires_at FROM ichido.held r ${OF_WORKER}
      UNION ALL ${HAD}, r.state, r.error, r.lease_expires_at FROM ichido.ended r ${OF_WORKER})
    SELECT p.run_no = ${latest('run_no')} AS is_last, p.state, p.error, p.lease_expires_at, ${STATE} AS last_state,
      ${latest('attempt')} AS last_attempt, ${latest('worker_id')} AS last_worker_id
    FROM p CROSS JOIN ${JOB_IN_ROOMS}
    WHERE j.id = $job_id AND (${param('token')} IS NULL OR p.token IS NULL OR p.token = $token)
    ORDER BY CASE WHEN p.token = $token THEN 0 ELSE 1 END, p.run_no DESC LIMIT 1`

/**
 * How the run ended, and the state of its job now. If no run has this token, it is the worker's last run whose token was removed,
 * as that of a run beyond its timeout is. Null instead of a token: the worker's last run.
 */
const readLateness = statement('read_lateness', {
  params: { job_id: 'text', worker_id: 'text', token: 'text?' },
  row: {
    is_last: 'flag',
    state,
    error: { json: parseRunError },
    lease_expires_at: 'integer?',
    last_state: state,
    last_attempt: 'integer',
    last_worker_id: 'text?',
  },
  postgres: LATENESS((name) => `$${name}::text`),
  sqlite: LATENESS((name) => `$${name}`),
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
    const { jobId, workerId, leaseId, token } = item
    const lost = { lost_token: tokenOf(leaseId), adopting_lease: leaseId }
    const adopted = yield* one(adoptRun, { job_id: jobId, worker_id: workerId, ...lost, token })
    if (adopted === undefined) return yield* explainLate(item)
    const held = { leaseId: leaseIdOf(jobId, token), version: null, leaderEpoch: null }
    const [outcome] = yield* finishRunsNow([{ ...item, ...held }])
    if (outcome === undefined) throw new Error('A report has an outcome')
    return outcome
  })
}

function* explainLate(item: LateItem): Work<FinishOutcome> {
  const row = yield* one(readAfter, { job_id: item.jobId, token: tokenOf(item.leaseId) })
  if (row === undefined) {
    const facts = (yield* factsOf([item])).get(item.leaseId)
    // Without a next run, the job has ended with the run that had this lease.
    return { kind: 'refused', reason: facts?.token === tokenOf(item.leaseId) ? 'ALREADY_ENDED' : 'LEASE_LOST' }
  }
  const decision = decide({ ...toFacts(row), before: beforeOf(row) }, adoptionOf(item), Number.MAX_SAFE_INTEGER)
  if (decision.kind === 'repeat')
    return yield* toRepeated({ ...item, leaseId: leaseIdOf(row.job_id, row.token ?? '') }, row)
  // A run that could be adopted now was refused before: its worker was revoked.
  return { kind: 'refused', reason: decision.kind === 'refuse' ? decision.reason : 'LEASE_LOST' }
}

function adoptionOf({ workerId, leaseId, outcomeHash }: LateItem): RunCommand {
  return { verb: 'adopt', workerId, leaseId, outcomeHash }
}

export function beforeOf(row: RowOf<typeof readAfter>) {
  const { job_id, before_state, before_worker_id, before_token } = row
  const leaseId = before_token === null ? null : leaseIdOf(job_id, before_token)
  return { state: before_state, workerId: before_worker_id, leaseId }
}

/** How a worker's run ended, and the state of its job since. */
export interface Lateness {
  state: RunState
  errorCode: string | null
  leaseEndedAtMs: number | null
  /** The job's last run; null when it is this run. */
  since: { state: RunState; attempt: number; workerId: string | null } | null
}

/** Null when the worker never held the job, or not under this lease. */
export function findLateness(jobId: string, workerId: string, leaseId: string | null): Command<Lateness | null> {
  return command('find_lateness', function* work(): Work<Lateness | null> {
    const row = yield* one(readLateness, {
      job_id: jobId,
      worker_id: workerId,
      token: leaseId === null ? null : tokenOf(leaseId),
    })
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
