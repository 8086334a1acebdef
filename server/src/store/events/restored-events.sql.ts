import { statement } from '../statement.ts'

/**
 * Takes a maximum. Events that are dated ahead of all transactions of this server came here in a dump of another one; they are
 * dated as of now, and what is relayed begins anew. `tx` of what is seen here is below the snapshot's end, so nothing else is
 * ever touched. Answers how many it found, also those that another node dated meanwhile: that one may not be done either.
 */
export const redateEvents = statement('redate_events', {
  postgres: `WITH a AS MATERIALIZED (
      SELECT ctid AS place FROM ichido.events
      WHERE tx >= pg_snapshot_xmax(pg_current_snapshot())::text::bigint ORDER BY tx, job_id, n LIMIT $1),
    e AS (UPDATE ichido.events e SET tx = DEFAULT FROM a WHERE e.ctid = a.place RETURNING 1),
    w AS (DELETE FROM ichido.relay_watermark WHERE EXISTS (SELECT 1 FROM e))
    SELECT count(*) AS found FROM a`,
  sqlite: [],
})
