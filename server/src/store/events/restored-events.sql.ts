import { statement } from '../statement.ts'

/**
 * Events that are dated ahead of all transactions of this server came in a dump of another server. They get the transaction of
 * now, and the relay begins anew. No event of this server is touched: its `tx` is below the end of the snapshot. `found` also
 * counts events that another node dates at the same time, because that node may not be done either.
 */
export const redateEvents = statement('redate_events', {
  params: { max: 'integer' },
  row: { found: 'integer' },
  postgres: `WITH a AS MATERIALIZED (
      SELECT ctid AS place FROM ichido.events
      WHERE tx >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint ORDER BY tx, job_id, n LIMIT $max),
    e AS (UPDATE ichido.events e SET tx = DEFAULT FROM a WHERE e.ctid = a.place RETURNING 1),
    w AS (DELETE FROM ichido.relay_watermark WHERE EXISTS (SELECT 1 FROM e))
    SELECT count(*) AS found FROM a`,
  sqlite: [],
})
