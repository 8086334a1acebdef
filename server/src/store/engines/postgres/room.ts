import { StoreFull } from '../../../core/node/store-errors.ts'
import { isDiskFull, sqlState } from './errors.ts'

/** A row has 36 bytes with its header, so this is about 300 KiB. */
const ROOM_ROWS = 8_192
const NO_PRIVILEGE = '42501'

export function storeFull(cause: unknown): StoreFull {
  return new StoreFull('store', 'of the PostgreSQL database', cause)
}

/**
 * Fills a table of its own, and rolls it back. Rows in an existing table would prove nothing: they may fit into its free pages
 * on a full disk. A role that may not create tables finds out with its next write.
 */
export async function requireRoom(run: (text: string) => Promise<unknown>): Promise<void> {
  await run('BEGIN READ WRITE')
  try {
    await run(`DO $$ BEGIN EXECUTE (
      SELECT format('CREATE UNLOGGED TABLE ichido.room_probe_%s%s AS SELECT generate_series(1::bigint, ${ROOM_ROWS}) AS n',
        pg_backend_pid(), ' TABLESPACE ' || quote_ident(t.spcname))
      FROM pg_class c LEFT JOIN pg_tablespace t ON t.oid = c.reltablespace WHERE c.oid = 'ichido.jobs'::regclass); END $$`)
  } catch (error) {
    if (isDiskFull(error)) throw storeFull(error)
    if (sqlState(error) !== NO_PRIVILEGE) throw error
  } finally {
    await run('ROLLBACK').catch(() => {})
  }
}
