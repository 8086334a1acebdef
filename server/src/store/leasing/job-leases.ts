import { type Command, command } from '../port.ts'
import { query, textOrNull, type Work } from '../statement.ts'
import { readLeasesOnJob } from './job-leases.sql.ts'

/** The leases that a worker has or had on a job of this kind, the last one first; null when there is no such job. */
export function leasesOnJob(jobId: string, kind: string, workerId: string): Command<string[] | null> {
  return command('leases_on_job', function* work(): Work<string[] | null> {
    const rows = yield* query(readLeasesOnJob, jobId, kind, workerId)
    return rows.length === 0 ? null : rows.flatMap((row) => textOrNull(row, 'lease_id') ?? [])
  })
}
