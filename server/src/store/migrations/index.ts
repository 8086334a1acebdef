import { foundation } from './0001-foundation.ts'
import type { Migration } from './migration.ts'

export const MIGRATIONS: readonly Migration[] = [foundation]
export const SCHEMA_VERSION = MIGRATIONS.at(-1)?.version ?? 0
