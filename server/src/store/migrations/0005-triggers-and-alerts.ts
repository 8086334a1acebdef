import type { Migration } from './migration.ts'

/** One migration for all that is new: a node works on a schema that is one version ahead of it, and no more. */
export const triggersAndAlerts: Migration = {
  version: 5,
  name: 'triggers and alerts',
  statements: [
    // The rule as JSON, and its topic beside it for the index. A node that does not know of them leaves both as they are.
    'ALTER TABLE ichido.job_definitions ADD COLUMN topic text',
    'ALTER TABLE ichido.job_definitions ADD COLUMN on_trigger text',
    'CREATE INDEX job_definitions_topic ON ichido.job_definitions (topic) WHERE topic IS NOT NULL',

    // `operates`: its sender might run any definition, not only its own. `settled_at`: processed, and nothing of it waits.
    `CREATE TABLE ichido.triggers (
      id uuid PRIMARY KEY,
      user_id text NOT NULL,
      operates boolean NOT NULL,
      topic text NOT NULL,
      dedupe_key text NOT NULL,
      data text NOT NULL,
      created_at bigint NOT NULL,
      processed_at bigint,
      settled_at bigint,
      UNIQUE (user_id, dedupe_key)
    )`,
    // One index (processed_at, created_at) would do for both, and hold every trigger; this one holds only those to come.
    'CREATE INDEX triggers_unprocessed ON ichido.triggers (created_at, id) WHERE processed_at IS NULL',
    'CREATE INDEX triggers_waiting ON ichido.triggers (id) WHERE processed_at IS NOT NULL AND settled_at IS NULL',
    'CREATE INDEX triggers_settled ON ichido.triggers (settled_at) WHERE settled_at IS NOT NULL',
    'CREATE INDEX triggers_topic ON ichido.triggers (topic, id)',
    'CREATE INDEX triggers_user ON ichido.triggers (user_id, id)',

    // The ledger. `triggered_at` is when the trigger came: what waits is made in that order.
    `CREATE TABLE ichido.trigger_outcomes (
      definition_id uuid NOT NULL,
      trigger_id uuid NOT NULL,
      triggered_at bigint NOT NULL,
      outcome text NOT NULL,
      job_id uuid,
      reason text,
      field text,
      created_at bigint NOT NULL,
      updated_at bigint NOT NULL,
      PRIMARY KEY (definition_id, trigger_id)
    )`,
    'CREATE INDEX trigger_outcomes_trigger ON ichido.trigger_outcomes (trigger_id)',
    'CREATE INDEX trigger_outcomes_job ON ichido.trigger_outcomes (job_id) WHERE job_id IS NOT NULL',
    `CREATE INDEX trigger_outcomes_waiting ON ichido.trigger_outcomes (definition_id, triggered_at, trigger_id)
      WHERE outcome IN ('waiting_quota', 'waiting_pause', 'waiting_turn')`,

    // Addresses of signed webhooks. The secret is in the clear: a signature cannot be checked with a hash of it.
    `CREATE TABLE ichido.hooks (
      id uuid PRIMARY KEY,
      name text NOT NULL UNIQUE,
      scheme text NOT NULL,
      topic text NOT NULL,
      secret text NOT NULL,
      user_id text NOT NULL,
      created_at bigint NOT NULL,
      updated_at bigint NOT NULL
    )`,

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

    // Error codes that are not retried, as a JSON list; null: none.
    'ALTER TABLE ichido.queues ADD COLUMN fatal_error_codes text',
  ],
}
