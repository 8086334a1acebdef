import { statement } from '../statement.ts'

const COUNTS = ['duplicates_refused', 'replays_served', 'stale_writes_fenced'] as const
const COLUMNS = `job_id, node_id, batch_n, ${COUNTS.join(', ')}`
const ADDED = `DO UPDATE SET batch_n = excluded.batch_n,
  ${COUNTS.map((count) => `${count} = o.${count} + excluded.${count}`).join(', ')}`

/**
 * Takes a job, or one of its runs, the node, the number of its batch, and the three counts. Of jobs that there are: they are
 * held, so that none is removed meanwhile and leaves its counts behind. A batch that was committed unheard adds nothing when
 * it comes again.
 */
export const addCounters = statement('add_counters', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT coalesce((SELECT r.job_id FROM ichido.runs r WHERE r.id = u.id), u.id) AS job_id, u.node_id, u.batch_n,
        u.duplicates, u.replays, u.stale
      FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::bigint[], $5::bigint[], $6::bigint[])
        AS u(id, node_id, batch_n, duplicates, replays, stale)),
    j AS MATERIALIZED (
      SELECT id FROM ichido.jobs WHERE id IN (SELECT job_id FROM t) ORDER BY id FOR KEY SHARE)
    INSERT INTO ichido.once_counters AS o (${COLUMNS})
    SELECT j.id, t.node_id, t.batch_n, sum(t.duplicates), sum(t.replays), sum(t.stale) FROM j JOIN t ON t.job_id = j.id
    GROUP BY j.id, t.node_id, t.batch_n ORDER BY j.id
    ON CONFLICT (job_id, node_id) ${ADDED} WHERE o.batch_n < excluded.batch_n`,
  sqlite: `INSERT INTO ichido.once_counters AS o (${COLUMNS})
    SELECT j.id, $2, $3, $4, $5, $6 FROM ichido.jobs j
    WHERE j.id = coalesce((SELECT r.job_id FROM ichido.runs r WHERE r.id = $1), $1)
    ON CONFLICT (job_id, node_id) ${ADDED}`,
})

/** Takes a job; a row for each node that counted something of it. */
export const readCounters = statement('read_counters', `SELECT ${COLUMNS} FROM ichido.once_counters WHERE job_id = $1`)
