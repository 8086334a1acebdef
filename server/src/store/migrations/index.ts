import { StoreRefused } from '../port.ts'
import { firstLayout } from './0001-first-layout.ts'
import type { Migration } from './migration.ts'

export const MIGRATIONS: readonly Migration[] = [firstLayout]
export const SCHEMA_VERSION = MIGRATIONS.at(-1)?.version ?? 0

/**
 * Refuses a database from before the first release, which has other tables under the same version numbers. `firstName` is the
 * name that the database recorded for version 1; undefined: it recorded none.
 */
export function requireOwnLayout(firstName: unknown): void {
  if (firstName === undefined || firstName === firstLayout.name) return
  throw new StoreRefused(
    'This database was made by an Ichido from before the first release, and this version cannot read its tables. Use an empty database, or set another DATABASE_SCHEMA or DATA_DIR.',
  )
}
