import { statement } from '../statement.ts'

/** Takes a worker and a maximum. */
export const countLeasesOf = statement(
  'count_leases_of',
  `SELECT count(*) AS held FROM (SELECT 1 FROM ichido.runs
    WHERE assigned_worker_id = $1 AND state IN ('ASSIGNED', 'RUNNING') LIMIT $2) r`,
)
