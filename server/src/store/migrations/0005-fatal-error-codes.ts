import type { Migration } from './migration.ts'

export const fatalErrorCodes: Migration = {
  version: 5,
  name: 'fatal error codes',
  // A JSON list, or null.
  statements: ['ALTER TABLE ichido.queues ADD COLUMN fatal_error_codes text'],
}
