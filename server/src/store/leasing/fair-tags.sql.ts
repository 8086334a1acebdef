import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'
import { READY } from './leases.sql.ts'

const TIME = 'SELECT q.tag FROM ichido.queue_times q WHERE q.queue = t.queue AND q.priority = t.priority'
const LAST = `SELECT r.fair_tag FROM ichido.runs r
      WHERE r.queue = t.queue AND r.priority = t.priority AND r.user_id = t.user_id AND ${READY}
        AND r.fair_tag > coalesce((${TIME}), -1)
      ORDER BY r.fair_tag DESC LIMIT 1`
const TAGS = `t.queue, t.user_id, t.priority, (${TIME}) AS time, (${LAST}) AS last`

/**
 * Takes queue, user, priority. Answers with the queue's time, and with the highest tag beyond it among the user's runs that are
 * ready; null: none. Not before it: what was leased stays in the index while a snapshot can see it, and would be stepped over.
 */
export const readLastTags = statement('read_last_tags', {
  postgres: `SELECT ${TAGS} FROM unnest($1::text[], $2::text[], $3::integer[]) AS t(queue, user_id, priority)`,
  sqlite: `SELECT ${TAGS} FROM (SELECT $1 AS queue, $2 AS user_id, $3 AS priority) t`,
})

const TIMES = 'queue, priority, tag, updated_at'
const raised = (
  greatest: string,
) => `ON CONFLICT (queue, priority) DO UPDATE SET tag = ${greatest}(q.tag, excluded.tag), updated_at = excluded.updated_at
    RETURNING queue, priority, tag`

/** Takes queue, priority, tag; sorted. A queue's time never goes back. Answers with the times in force. */
export const raiseTimes = statement('raise_queue_times', {
  postgres: `INSERT INTO ichido.queue_times AS q (${TIMES})
    SELECT t.*, now_ms() FROM unnest($1::text[], $2::integer[], $3::bigint[]) t ${raised('greatest')}`,
  sqlite: `INSERT INTO ichido.queue_times AS q (${TIMES}) VALUES ($1, $2, $3, now_ms()) ${raised('max')}`,
})

const IDLE = `q.updated_at < (SELECT now_ms()) - CAST($4 AS bigint) AND NOT EXISTS (
        SELECT 1 FROM ichido.runs r WHERE r.queue = q.queue AND r.priority = q.priority AND ${READY})`

/** Takes epoch, holder, a maximum and an age in ms: queues that nothing was leased from for so long, and that have no work. */
export const removeQueueTimes = statement('remove_queue_times', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT q.ctid AS place FROM l CROSS JOIN ichido.queue_times q WHERE ${IDLE}
      ORDER BY q.queue, q.priority LIMIT $3 FOR UPDATE OF q SKIP LOCKED)
    DELETE FROM ichido.queue_times WHERE ctid IN (SELECT place FROM c) RETURNING queue`,
  sqlite: `DELETE FROM ichido.queue_times WHERE ${LED_SQLITE} AND rowid IN (
      SELECT q.rowid FROM ichido.queue_times q WHERE ${IDLE} LIMIT $3) RETURNING queue`,
})
