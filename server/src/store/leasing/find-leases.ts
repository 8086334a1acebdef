import { type Command, command } from '../port.ts'
import { exactlyOne, query, statement, type Work } from '../statement.ts'

/**
 * The leases that the worker has or had on the job, the last one first. A job without such a lease has one row with null, and
 * an unknown job has no row.
 */
const readLeasesOnJob = statement('read_leases_on_job', {
  params: { job_id: 'text', kind: 'text', worker_id: 'text' },
  row: { lease_id: 'text?' },
  sql: `SELECT r.lease_id FROM ichido.jobs j
    LEFT JOIN ichido.runs r ON r.job_id = j.id AND r.assigned_worker_id = $worker_id AND r.lease_id IS NOT NULL
    WHERE j.id = $job_id AND j.kind = $kind ORDER BY r.run_no DESC`,
})

const countLeasesOf = statement('count_leases_of', {
  params: { worker_id: 'text', max: 'integer' },
  row: { held: 'integer' },
  sql: `SELECT count(*) AS held FROM (SELECT 1 FROM ichido.runs
    WHERE assigned_worker_id = $worker_id AND state IN ('ASSIGNED', 'RUNNING') LIMIT $max) r`,
})

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
    const [first] = asked.leaseId === null ? rows : rows.filter(({ lease_id }) => lease_id === asked.leaseId)
    return rows.length === 0 ? null : { leaseId: first?.lease_id ?? null }
  })
}

/** The number of runs that a worker holds, counted up to a maximum. */
export function countWorkerLeases(workerId: string, max: number): Command<number> {
  return command('count_worker_leases', function* work(): Work<number> {
    return (yield* exactlyOne(countLeasesOf, { worker_id: workerId, max })).held
  })
}
