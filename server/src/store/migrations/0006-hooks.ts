import type { Migration } from './migration.ts'

export const hooks: Migration = {
  version: 6,
  name: 'hooks',
  statements: [
    `CREATE TABLE ichido.hooks (
      id uuid PRIMARY KEY, name text NOT NULL UNIQUE, scheme text NOT NULL, topic text NOT NULL, secret text NOT NULL, user_id text NOT NULL,
      created_at bigint NOT NULL, updated_at bigint NOT NULL)`,
  ],
}
