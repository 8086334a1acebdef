import type { Migration } from './migration.ts'

/** One migration for the whole release: a node accepts a schema one version ahead of it, and no further. */
export const hardening: Migration = {
  version: 6,
  name: 'hardening',
  statements: [
    // The public half of a key that only the API token itself gives; null until it first asks for a stream token.
    'ALTER TABLE ichido.api_tokens ADD COLUMN stream_key text',
    // Whoever read it could sign stream tokens for any job.
    "DELETE FROM ichido.settings WHERE name = 'stream_token_secret'",
    // What a user has stored is counted only while it has a limit; null: it has not been counted since that was set.
    'ALTER TABLE ichido.quotas ADD COLUMN max_bytes bigint',
    'ALTER TABLE ichido.quotas ADD COLUMN used_bytes bigint',
    // How far each queue has got, by the tag last leased: nodes give out tags behind it.
    `CREATE TABLE ichido.queue_times (
      queue text NOT NULL,
      priority integer NOT NULL,
      tag bigint NOT NULL,
      updated_at bigint NOT NULL,
      PRIMARY KEY (queue, priority)
    )`,
    `INSERT INTO ichido.queue_times (queue, priority, tag, updated_at)
      SELECT queue, priority,
        coalesce(min(fair_tag) FILTER (WHERE state IN ('PENDING', 'ORPHANED')), max(fair_tag)), max(created_at)
      FROM ichido.runs WHERE fair_tag IS NOT NULL GROUP BY queue, priority`,
    // The queues, domains and names of labels that each user has used of late.
    `CREATE TABLE ichido.user_names (
      user_id text NOT NULL,
      sort text NOT NULL,
      name text NOT NULL,
      seen_at bigint NOT NULL,
      PRIMARY KEY (user_id, sort, name)
    )`,
    'CREATE INDEX user_names_seen ON ichido.user_names (seen_at)',
    // A user's last tag in a queue, by one look. Not led by the queue: the planner would take it for what runs_ready is for.
    `CREATE INDEX runs_last_tag ON ichido.runs (user_id, queue, priority, fair_tag)
      WHERE state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL`,
  ],
}
