import type pg from 'pg'
import { WITHIN } from './servers.ts'

const ROOMS = ['ready', 'held']
/** Fewer dead rows do not slow a scan down. */
const DEAD_MIN = 5_000

const CHURNED = `SELECT relname AS room FROM pg_stat_user_tables
  WHERE schemaname = $1 AND relname = ANY($2) AND n_dead_tup > $3 + n_live_tup / 2 ORDER BY relname`

/**
 * Every lease and every finish leaves a dead row. Autovacuum looks once a minute: after 100,000 jobs a look at an empty room took
 * 5 ms. The file keeps its length, because cutting it would lock out all commands. A role that does not own the tables leaves
 * the work to autovacuum.
 */
export async function vacuum(client: pg.ClientBase, schema: string): Promise<string[]> {
  const { rows } = await client.query({ text: CHURNED, values: [schema, ROOMS, DEAD_MIN], ...WITHIN })
  const rooms = rows.map(({ room }) => String(room))
  for (const room of rooms) await client.query({ text: `VACUUM (TRUNCATE false) "${schema}".${room}`, ...WITHIN })
  return rooms
}
