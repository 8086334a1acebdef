import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from './leadership.sql.ts'

const COLUMNS = 'minute, name, counted_by, batch_n, count'
const ADD = 'count = m.count + excluded.count'
const THIS_MINUTE = 'CAST(now_ms() / 60000 AS bigint)'

/** Counts in the transaction that does the counted thing. */
export const countNow = statement('count_now', {
  params: { name: 'text', count: 'integer' },
  row: {},
  sql: `INSERT INTO ichido.minute_counts AS m (${COLUMNS}) VALUES (${THIS_MINUTE}, $name, '', 0, $count)
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET ${ADD}`,
})

/** A batch that is tried again after an uncertain commit adds nothing twice. */
export const addMinuteCounts = statement('add_minute_counts', {
  params: { minute: 'integer', name: 'text', counted_by: 'text', batch_n: 'integer', count: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.minute_counts AS m (${COLUMNS})
    SELECT * FROM unnest($minute::bigint[], $name::text[], $counted_by::text[], $batch_n::bigint[], $count::bigint[])
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET batch_n = excluded.batch_n, ${ADD}
    WHERE m.batch_n < excluded.batch_n`,
  sqlite: `INSERT INTO ichido.minute_counts AS m (${COLUMNS}) VALUES ($minute, $name, $counted_by, $batch_n, $count)
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET batch_n = excluded.batch_n, ${ADD}
    WHERE m.batch_n < excluded.batch_n`,
})

/** The sums over all nodes. The name may be one that only a newer node knows. */
export const readMinuteCounts = statement('read_minute_counts', {
  params: { age_ms: 'integer' },
  row: { minute: 'integer', name: 'text', count: 'integer' },
  sql: `SELECT minute, name, CAST(sum(count) AS bigint) AS count FROM ichido.minute_counts
    WHERE minute >= CAST(((SELECT now_ms()) - CAST($age_ms AS bigint)) / 60000 AS bigint) GROUP BY minute, name`,
})

const OLD = 'minute < CAST(((SELECT now_ms()) - CAST($age_ms AS bigint)) / 60000 AS bigint)'

export const removeMinuteCounts = statement('remove_minute_counts', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { minute: 'integer' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT m.ctid AS place FROM l CROSS JOIN ichido.minute_counts m WHERE m.${OLD}
      ORDER BY m.minute LIMIT $max FOR UPDATE OF m SKIP LOCKED)
    DELETE FROM ichido.minute_counts WHERE ctid IN (SELECT place FROM c) RETURNING minute`,
  sqlite: `DELETE FROM ichido.minute_counts WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.minute_counts WHERE ${OLD} ORDER BY minute LIMIT $max) RETURNING minute`,
})
