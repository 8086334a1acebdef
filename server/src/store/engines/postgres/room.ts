import { StoreFull } from '../../../core/node/store-errors.ts'
import { isDiskFull, sqlState } from './errors.ts'

/** Of 36 bytes each, with their headers: about 300 KiB. */
const ROOM_ROWS = 8_192
const NO_PRIVILEGE = '42501'

export function storeFull(cause: unknown): StoreFull {
  return new StoreFull('store', 'of the PostgreSQL database', cause)
}

/**
 * Fills a table of its own, and takes it back. Rows in a table that is there already would say nothing: they may fit into pages
 * that are free in the midst of a full disk. A role that may not make tables finds out by its next write.
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
