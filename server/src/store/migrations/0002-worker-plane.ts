import type { Migration } from './migration.ts'

export const workerPlane: Migration = {
  version: 2,
  name: 'worker plane',
  statements: ['ALTER TABLE ichido.workers ADD COLUMN meta text'],
}
