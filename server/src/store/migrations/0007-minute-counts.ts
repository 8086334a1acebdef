import type { Migration } from './migration.ts'

export const minuteCounts: Migration = {
  version: 7,
  name: 'minute counts',
  statements: [
    // What happened in each minute, for alerts. Each process adds to rows of its own and numbers what it adds, so that a batch that
    // is tried again after an uncertain commit does not count twice; counted_by is '' for what the transaction itself counts.
    `CREATE TABLE ichido.minute_counts (
      minute bigint NOT NULL,
      name text NOT NULL,
      counted_by text NOT NULL,
      batch_n bigint NOT NULL,
      count bigint NOT NULL,
      PRIMARY KEY (minute, name, counted_by)
    )`,
  ],
}
