import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/term.ts'
import { READY } from './leases.sql.ts'

const TIME = 'SELECT q.tag FROM ichido.queue_times q WHERE q.queue = t.queue AND q.priority = t.priority'
const LAST = `SELECT r.fair_tag FROM ichido.runs r
      WHERE r.queue = t.queue AND r.priority = t.priority AND r.user_id = t.user_id AND ${READY}
        AND r.fair_tag > coalesce((${TIME}), -1)
      ORDER BY r.fair_tag DESC LIMIT 1`
const TAGS = `t.queue, t.user_id, t.priority, (${TIME}) AS time, (${LAST}) AS last`

/**
 * The queue's time, and the highest tag beyond it among the user's runs that are ready; null: there is none. Tags before the
 * queue's time are left out: a leased run stays in the index while a snapshot can see it, and would be stepped over.
 */
export const readLastTags = statement('read_last_tags', {
  params: { queue: 'text', user_id: 'text', priority: 'integer' },
  row: { queue: 'text', user_id: 'text', priority: 'integer', time: 'integer?', last: 'integer?' },
  postgres: `SELECT ${TAGS} FROM unnest($queue::text[], $user_id::text[], $priority::integer[]) AS t(queue, user_id, priority)`,
  sqlite: `SELECT ${TAGS} FROM (SELECT $queue AS queue, $user_id AS user_id, $priority AS priority) t`,
})

const TIMES = 'queue, priority, tag, updated_at'
const raised = (
  greatest: string,
) => `ON CONFLICT (queue, priority) DO UPDATE SET tag = ${greatest}(q.tag, excluded.tag), updated_at = excluded.updated_at
    RETURNING queue, priority, tag`

/** Takes sorted rows. A queue's time never goes back. Answers with the times in force. */
export const raiseTimes = statement('raise_queue_times', {
  params: { queue: 'text', priority: 'integer', tag: 'integer' },
  row: { queue: 'text', priority: 'integer', tag: 'integer' },
  postgres: `INSERT INTO ichido.queue_times AS q (${TIMES})
    SELECT t.*, now_ms() FROM unnest($queue::text[], $priority::integer[], $tag::bigint[]) t ${raised('greatest')}`,
  sqlite: `INSERT INTO ichido.queue_times AS q (${TIMES}) VALUES ($queue, $priority, $tag, now_ms()) ${raised('max')}`,
})

const IDLE = `q.updated_at < (SELECT now_ms()) - CAST($age_ms AS bigint) AND NOT EXISTS (
        SELECT 1 FROM ichido.runs r WHERE r.queue = q.queue AND r.priority = q.priority AND ${READY})`

/** Removes the times of queues that have no work and from which nothing was leased for so long. */
export const removeQueueTimes = statement('remove_queue_times', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { queue: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT q.ctid AS place FROM l CROSS JOIN ichido.queue_times q WHERE ${IDLE}
      ORDER BY q.queue, q.priority LIMIT $max FOR UPDATE OF q SKIP LOCKED)
    DELETE FROM ichido.queue_times WHERE ctid IN (SELECT place FROM c) RETURNING queue`,
  sqlite: `DELETE FROM ichido.queue_times WHERE ${LED_SQLITE} AND rowid IN (
      SELECT q.rowid FROM ichido.queue_times q WHERE ${IDLE} LIMIT $max) RETURNING queue`,
})
