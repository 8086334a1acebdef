import { type Command, command } from '../port.ts'
import { query, type Work } from '../statement.ts'
import { readLeasesOnJob } from './job-leases.sql.ts'

/** The leases that a worker has or had on a job of this kind, the last one first; null when there is no such job. */
export function leasesOnJob(jobId: string, kind: string, workerId: string): Command<string[] | null> {
  return command('leases_on_job', function* work(): Work<string[] | null> {
    const rows = yield* query(readLeasesOnJob, { job_id: jobId, kind, worker_id: workerId })
    return rows.length === 0 ? null : rows.flatMap((row) => row.lease_id ?? [])
  })
}
