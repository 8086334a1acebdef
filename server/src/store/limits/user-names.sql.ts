import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'

/** Takes users, sorted. Until this transaction ends, nobody else adds names of these users. */
export const lockNames = statement('lock_user_names', {
  postgres: `SELECT count(pg_advisory_xact_lock(hashtextextended('ichido.user_names ' || t.user_id, 0)))
    FROM (SELECT user_id FROM unnest($1::text[]) AS t(user_id) ORDER BY user_id) t`,
  sqlite: [],
})

/** Takes user and sort. A statement of its own: it is younger than the lock. Answers how many names of that sort the user has. */
export const countNames = statement('count_user_names', {
  postgres: `SELECT t.user_id, t.sort, (SELECT count(*) FROM ichido.user_names n
      WHERE n.user_id = t.user_id AND n.sort = t.sort) AS count
    FROM unnest($1::text[], $2::text[]) AS t(user_id, sort)`,
  sqlite: `SELECT $1 AS user_id, $2 AS sort, count(*) AS count FROM ichido.user_names WHERE user_id = $1 AND sort = $2`,
})

/** Takes user, sort and name. Answers with those that the user has. */
export const readNames = statement('read_user_names', {
  postgres: `SELECT n.user_id, n.sort, n.name FROM unnest($1::text[], $2::text[], $3::text[]) AS t(user_id, sort, name)
    JOIN ichido.user_names n USING (user_id, sort, name)`,
  sqlite: 'SELECT user_id, sort, name FROM ichido.user_names WHERE user_id = $1 AND sort = $2 AND name = $3',
})

/** Takes user, sort and name. */
export const noteNames = statement('note_user_names', {
  postgres: `INSERT INTO ichido.user_names (user_id, sort, name, seen_at)
    SELECT t.*, now_ms() FROM unnest($1::text[], $2::text[], $3::text[]) t
    ON CONFLICT (user_id, sort, name) DO UPDATE SET seen_at = excluded.seen_at`,
  sqlite: `INSERT INTO ichido.user_names (user_id, sort, name, seen_at) VALUES ($1, $2, $3, now_ms())
    ON CONFLICT (user_id, sort, name) DO UPDATE SET seen_at = excluded.seen_at`,
})

/** Takes epoch, holder, a maximum and an age in ms. Forgets names that were not noted for so long. */
export const removeNames = statement('remove_user_names', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT n.ctid AS place FROM l CROSS JOIN ichido.user_names n WHERE n.seen_at < (SELECT now_ms()) - CAST($4 AS bigint)
      ORDER BY n.seen_at LIMIT $3 FOR UPDATE OF n SKIP LOCKED)
    DELETE FROM ichido.user_names WHERE ctid IN (SELECT place FROM c) RETURNING name`,
  sqlite: `DELETE FROM ichido.user_names WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.user_names WHERE seen_at < now_ms() - $4 ORDER BY seen_at LIMIT $3) RETURNING name`,
})
