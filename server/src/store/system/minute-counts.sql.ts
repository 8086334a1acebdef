import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from './leadership.sql.ts'

const COLUMNS = 'minute, name, counted_by, batch_n, count'
const ADD = 'count = m.count + excluded.count'
const THIS_MINUTE = 'CAST(now_ms() / 60000 AS bigint)'

/** Takes a name and a number: counted by the transaction that it happens in. */
export const countNow = statement(
  'count_now',
  `INSERT INTO ichido.minute_counts AS m (${COLUMNS}) VALUES (${THIS_MINUTE}, $1, '', 0, $2)
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET ${ADD}`,
)

/** Takes minute, name, node, the number of its batch and a count. A batch that was committed unheard adds nothing when it comes again. */
export const addMinuteCounts = statement('add_minute_counts', {
  postgres: `INSERT INTO ichido.minute_counts AS m (${COLUMNS})
    SELECT * FROM unnest($1::bigint[], $2::text[], $3::text[], $4::bigint[], $5::bigint[])
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET batch_n = excluded.batch_n, ${ADD}
    WHERE m.batch_n < excluded.batch_n`,
  sqlite: `INSERT INTO ichido.minute_counts AS m (${COLUMNS}) VALUES ($1, $2, $3, $4, $5)
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET batch_n = excluded.batch_n, ${ADD}
    WHERE m.batch_n < excluded.batch_n`,
})

/** Takes an age in ms: what was counted since, over all nodes. */
export const readMinuteCounts = statement(
  'read_minute_counts',
  `SELECT minute, name, CAST(sum(count) AS bigint) AS count FROM ichido.minute_counts
    WHERE minute >= CAST(((SELECT now_ms()) - CAST($1 AS bigint)) / 60000 AS bigint) GROUP BY minute, name`,
)

const OLD = 'minute < CAST(((SELECT now_ms()) - CAST($4 AS bigint)) / 60000 AS bigint)'

/** Takes epoch, holder, a maximum and an age in ms. */
export const removeMinuteCounts = statement('remove_minute_counts', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT m.ctid AS place FROM l CROSS JOIN ichido.minute_counts m WHERE m.${OLD}
      ORDER BY m.minute LIMIT $3 FOR UPDATE OF m SKIP LOCKED)
    DELETE FROM ichido.minute_counts WHERE ctid IN (SELECT place FROM c) RETURNING minute`,
  sqlite: `DELETE FROM ichido.minute_counts WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.minute_counts WHERE ${OLD} ORDER BY minute LIMIT $3) RETURNING minute`,
})
