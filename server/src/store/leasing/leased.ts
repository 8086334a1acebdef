import { type JobPolicy, PAYLOAD_BYTES_MAX } from '../../core/run/job.ts'
import { type Command, command } from '../port.ts'
import { leaseIdOf } from '../runs/run-facts.ts'
import { exactlyOne, query, type RowOf, statement, type Work } from '../statement.ts'
import { type leasedByPoll, PAYLOADS_BYTES_MAX } from './lease-runs.sql.ts'

/**
 * The leases that the worker has or had on the job, the last one first. A job without such a lease has one row with null, and
 * an unknown job has no row.
 */
const readLeasesOnJob = statement('read_leases_on_job', {
  params: { job_id: 'text', kind: 'text', worker_id: 'text' },
  row: { token: 'text?' },
  sql: `SELECT r.token FROM ichido.jobs j LEFT JOIN (
      SELECT job_id, run_no, worker_id, token FROM ichido.ready WHERE job_id = $job_id
      UNION ALL SELECT job_id, run_no, worker_id, token FROM ichido.held WHERE job_id = $job_id
      UNION ALL SELECT job_id, run_no, worker_id, token FROM ichido.ended WHERE job_id = $job_id
    ) r ON r.job_id = j.id AND r.worker_id = $worker_id AND r.token IS NOT NULL
    WHERE j.id = $job_id AND j.kind = $kind ORDER BY r.run_no DESC`,
})

const countLeasesOf = statement('count_leases_of', {
  params: { worker_id: 'text', max: 'integer' },
  row: { held: 'integer' },
  sql: `SELECT count(*) AS held FROM (SELECT 1 FROM ichido.held WHERE worker_id = $worker_id LIMIT $max) r`,
})

export interface LeaseItem {
  workerId: string
  /** In the order of the poll. */
  queues: readonly string[]
  /** Empty: any kind. */
  kinds: readonly string[]
  max: number
  /** Names the poll. A repeat under the same name gets the same leases. */
  pollId: string
  /** The name came from the worker, so the poll may be a repeat. */
  named: boolean
  /** Random, so that nobody can guess a lease_id. */
  token: string
  leaseTtlMs: number
  /** Set: this process starts the runs, and they are RUNNING with the lease. */
  startId: string | null
}

export interface Leased {
  runId: string
  workerId: string
  jobId: string
  attempt: number
  retryCount: number
  version: number
  leaseId: string
  leaseExpiresAtMs: number
  leaderEpoch: number | null
  queue: string
  kind: string
  userId: string
  priority: number
  fairTag: number
  payload: string
  policy: JobPolicy
  leaseTtlMs: number
  continuationMs: number
  traceparent: string | null
  /** A JSON array. */
  artifacts: string
  /** JSON; null when no earlier attempt has published progress. */
  lastProgress: string | null
  /** From the due time until this lease started the run; null: it did not start the run, or the answer is a repeat. */
  waitedMs: number | null
}

/** A place in the order of a queue. */
export interface Position {
  priority: number
  fairTag: number
}

/** Names the runs of these kinds in this queue. */
export const placeName = (queue: string, kinds: readonly string[]) => JSON.stringify([queue, kinds])

/** By place, the position from which a scan goes on. A place without a position is scanned from the beginning. */
export type Positions = ReadonlyMap<string, Position>

/** By queue, the last kind that was scanned; null when all kinds of the queue were scanned together. */
export type KindRotation = ReadonlyMap<string, string | null>

export interface LeaseAnswer {
  /** One list for each item, in the order of the items. */
  leases: Leased[][]
  /** The new place of each queue whose kinds were scanned. */
  rotation: KindRotation
  /** The places that were scanned from the beginning. */
  scanned: ReadonlySet<string>
  /** The workers that were found to drain. A look that finds no run does not look at its workers. */
  draining: ReadonlySet<string>
}

/** A new lease also says how long its run has waited. */
export type LeasedRow = RowOf<typeof leasedByPoll> & { readonly waited_ms?: number | null }
type LeasedRun = Omit<LeasedRow, 'queue' | 'worker_id' | 'poll_id' | 'token'>

export const nameOf = ({ workerId, pollId }: LeaseItem) => JSON.stringify([workerId, pollId])

/** Whether the next payload may not fit: then more runs may be ready than were found. */
export const isFull = (bytes: number) => bytes + PAYLOAD_BYTES_MAX > PAYLOADS_BYTES_MAX

/** A statement answers in the order of its plan. Leases are sorted by queue, and by their place in the queue. */
export function toLeases({ queues }: LeaseItem, rows: readonly LeasedRow[]): Leased[] {
  return rows
    .toSorted((a, b) => queues.indexOf(a.queue) - queues.indexOf(b.queue) || inQueueOrder(a, b))
    .map((row) => toLeased(row, row))
}

export function inQueueOrder(a: LeasedRun, b: LeasedRun): number {
  return b.priority - a.priority || a.fair_tag - b.fair_tag || (a.job_id < b.job_id ? -1 : 1)
}

export function toLeased(row: LeasedRun, poll: Pick<LeasedRow, 'queue' | 'worker_id' | 'token'>): Leased {
  const { waited_ms: waitedMs = null } = row
  return {
    runId: row.run_id,
    workerId: poll.worker_id,
    jobId: row.job_id,
    attempt: row.attempt,
    retryCount: row.retry_count,
    version: row.version,
    leaseId: leaseIdOf(row.job_id, poll.token),
    leaseExpiresAtMs: row.lease_expires_at,
    leaderEpoch: row.leader_epoch,
    queue: poll.queue,
    kind: row.kind,
    userId: row.user_id,
    priority: row.priority,
    fairTag: row.fair_tag,
    payload: row.payload,
    policy: row.policy,
    leaseTtlMs: row.lease_ttl_ms,
    continuationMs: row.continuation_ms,
    traceparent: row.traceparent,
    artifacts: row.artifacts ?? '[]',
    lastProgress: row.last_progress,
    waitedMs: waitedMs === null ? null : Math.max(0, waitedMs),
  }
}

export interface LeaseOfJob {
  jobId: string
  kind: string
  workerId: string
  /** Null: the worker's last lease on the job. */
  leaseId: string | null
}

/** Null when there is no such job. Its `leaseId` is null when the worker never had this lease. */
export function findLeaseOfJob(asked: LeaseOfJob): Command<{ leaseId: string | null } | null> {
  const { jobId, kind, workerId } = asked
  return command('find_lease_of_job', function* work() {
    const rows = yield* query(readLeasesOnJob, { job_id: jobId, kind, worker_id: workerId })
    const leases = rows.flatMap(({ token }) => (token === null ? [] : [leaseIdOf(jobId, token)]))
    const leaseId = asked.leaseId === null ? leases[0] : leases.find((lease) => lease === asked.leaseId)
    return rows.length === 0 ? null : { leaseId: leaseId ?? null }
  })
}

/** The number of runs that a worker holds, counted up to a maximum. */
export function countWorkerLeases(workerId: string, max: number): Command<number> {
  return command('count_worker_leases', function* work(): Work<number> {
    return (yield* exactlyOne(countLeasesOf, { worker_id: workerId, max })).held
  })
}
