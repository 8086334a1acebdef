import { statement } from '../statement.ts'

/**
 * Takes a job, its kind and a worker. Answers with the leases that the worker has or had on the job, the last one first; with
 * one row without a lease when it never had any, and with none when there is no such job.
 */
export const readLeasesOnJob = statement(
  'read_leases_on_job',
  `SELECT r.lease_id FROM ichido.jobs j
    LEFT JOIN ichido.runs r ON r.job_id = j.id AND r.assigned_worker_id = $3 AND r.lease_id IS NOT NULL
    WHERE j.id = $1 AND j.kind = $2 ORDER BY r.run_no DESC`,
)
