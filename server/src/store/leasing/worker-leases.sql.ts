import { statement } from '../statement.ts'

export const countLeasesOf = statement('count_leases_of', {
  params: { worker_id: 'text', max: 'integer' },
  row: { held: 'integer' },
  sql: `SELECT count(*) AS held FROM (SELECT 1 FROM ichido.runs
    WHERE assigned_worker_id = $worker_id AND state IN ('ASSIGNED', 'RUNNING') LIMIT $max) r`,
})
