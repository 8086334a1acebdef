import type { Migration } from './migration.ts'

/** One migration for the whole release: a node accepts a schema one version ahead of it, and no further. */
export const hardening: Migration = {
  version: 6,
  name: 'hardening',
  statements: [],
}
