import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/leadership.sql.ts'

export const NAME_SORTS = ['queue', 'domain', 'label'] as const

const sort = { oneOf: NAME_SORTS } as const
const NAME = { user_id: 'text', sort, name: 'text' } as const

/** Until this transaction ends, no other transaction adds names of these users. The users are sorted. */
export const lockNames = statement('lock_user_names', {
  params: { user_id: 'text' },
  row: {},
  postgres: `SELECT count(pg_advisory_xact_lock(hashtextextended('ichido.user_names ' || t.user_id, 0)))
    FROM (SELECT user_id FROM unnest($user_id::text[]) AS t(user_id) ORDER BY user_id) t`,
  sqlite: [],
})

/** Counts the names of a user by sort. This is a statement of its own: its snapshot must be younger than the lock. */
export const countNames = statement('count_user_names', {
  params: { user_id: 'text', sort },
  row: { user_id: 'text', sort, count: 'integer' },
  postgres: `SELECT t.user_id, t.sort, (SELECT count(*) FROM ichido.user_names n
      WHERE n.user_id = t.user_id AND n.sort = t.sort) AS count
    FROM unnest($user_id::text[], $sort::text[]) AS t(user_id, sort)`,
  sqlite: `SELECT $user_id AS user_id, $sort AS sort, count(*) AS count FROM ichido.user_names
    WHERE user_id = $user_id AND sort = $sort`,
})

/** The names that the user has already. */
export const readNames = statement('read_user_names', {
  params: NAME,
  row: NAME,
  postgres: `SELECT n.user_id, n.sort, n.name
    FROM unnest($user_id::text[], $sort::text[], $name::text[]) AS t(user_id, sort, name)
    JOIN ichido.user_names n USING (user_id, sort, name)`,
  sqlite:
    'SELECT user_id, sort, name FROM ichido.user_names WHERE user_id = $user_id AND sort = $sort AND name = $name',
})

export const noteNames = statement('note_user_names', {
  params: NAME,
  row: {},
  postgres: `INSERT INTO ichido.user_names (user_id, sort, name, seen_at)
    SELECT t.*, now_ms() FROM unnest($user_id::text[], $sort::text[], $name::text[]) t
    ON CONFLICT (user_id, sort, name) DO UPDATE SET seen_at = excluded.seen_at`,
  sqlite: `INSERT INTO ichido.user_names (user_id, sort, name, seen_at) VALUES ($user_id, $sort, $name, now_ms())
    ON CONFLICT (user_id, sort, name) DO UPDATE SET seen_at = excluded.seen_at`,
})

/** Removes names that were not noted for so long. */
export const removeNames = statement('remove_user_names', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { name: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT n.ctid AS place FROM l CROSS JOIN ichido.user_names n WHERE n.seen_at < (SELECT now_ms()) - CAST($age_ms AS bigint)
      ORDER BY n.seen_at LIMIT $max FOR UPDATE OF n SKIP LOCKED)
    DELETE FROM ichido.user_names WHERE ctid IN (SELECT place FROM c) RETURNING name`,
  sqlite: `DELETE FROM ichido.user_names WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.user_names WHERE seen_at < now_ms() - $age_ms ORDER BY seen_at LIMIT $max) RETURNING name`,
})
