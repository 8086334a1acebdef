import { statement } from '../statement.ts'

/**
 * The leases that the worker has or had on the job, the last one first; one row without a lease when it never had any, and no
 * row when there is no such job.
 */
export const readLeasesOnJob = statement('read_leases_on_job', {
  params: { job_id: 'text', kind: 'text', worker_id: 'text' },
  row: { lease_id: 'text?' },
  sql: `SELECT r.lease_id FROM ichido.jobs j
    LEFT JOIN ichido.runs r ON r.job_id = j.id AND r.assigned_worker_id = $worker_id AND r.lease_id IS NOT NULL
    WHERE j.id = $job_id AND j.kind = $kind ORDER BY r.run_no DESC`,
})
