import type { Ddl } from '../migration.ts'

/** Outgoing webhooks, callbacks of single jobs, and their deliveries. */
export const webhooks: readonly Ddl[] = [
  // `events` is a JSON array. The secrets are stored in clear text: a hash of them could not sign. During a rotation messages are
  // signed with both.
  `CREATE TABLE ichido.webhooks (
    id uuid PRIMARY KEY,
    url text NOT NULL,
    description text NOT NULL,
    events text NOT NULL,
    queue text,
    kind text,
    label_name text,
    label_value text,
    secret text NOT NULL,
    old_secret text,
    old_secret_until bigint,
    disabled_at bigint,
    disabled_reason text,
    user_id text NOT NULL,
    created_at bigint NOT NULL,
    updated_at bigint NOT NULL
  )`,

  // Places among the ends of all jobs. The first id stands for the leader's watermark: every end before it has its deliveries. The
  // others are webhooks: each gets the ends from its place on. A restore does not bring them, because another store counts
  // transactions in its own way.
  `CREATE TABLE ichido.webhook_places (
    id uuid PRIMARY KEY,
    tx bigint NOT NULL,
    job_id uuid NOT NULL,
    run_no integer NOT NULL
  )`,

  // The jobs with a callback. Few jobs have one, so it is no column of `jobs`.
  `CREATE TABLE ichido.callbacks (
    job_id uuid PRIMARY KEY,
    url text NOT NULL
  )`,

  // Messages to the callbacks of a user's jobs are signed with the user's secret. It is in clear text, as in `webhooks`.
  `CREATE TABLE ichido.callback_secrets (
    user_id text PRIMARY KEY,
    secret text NOT NULL,
    old_secret text,
    old_secret_until bigint
  )`,

  // `subject_id` is the job, alert or test that the message tells of, and `subject_n` the number of the message among those of the
  // subject. `payload` is the body, byte for byte: each try sends the same. `failures` counts the failed tries since the last redrive.
  // A pending delivery has next_at, an ended one ended_at. The first id stands for callbacks instead of a webhook. Only their
  // deliveries have url, host and user_id, which the removal of the job does not change.
  `CREATE TABLE ichido.webhook_deliveries (
    id uuid PRIMARY KEY,
    webhook_id uuid NOT NULL,
    type text NOT NULL,
    subject_id uuid NOT NULL,
    subject_n integer NOT NULL,
    payload text NOT NULL,
    url text,
    host text,
    user_id text,
    state text NOT NULL,
    attempts integer NOT NULL,
    failures integer NOT NULL,
    next_at bigint,
    last_status integer,
    last_error text,
    created_at bigint NOT NULL,
    ended_at bigint,
    UNIQUE (webhook_id, subject_id, subject_n)
  )`,
  `CREATE INDEX webhook_deliveries_due ON ichido.webhook_deliveries (webhook_id, next_at, id)
    WHERE next_at IS NOT NULL`,
  `CREATE INDEX webhook_deliveries_hosts ON ichido.webhook_deliveries (host, next_at, id)
    WHERE host IS NOT NULL AND next_at IS NOT NULL`,
  'CREATE INDEX webhook_deliveries_list ON ichido.webhook_deliveries (webhook_id, id)',
  'CREATE INDEX webhook_deliveries_state ON ichido.webhook_deliveries (webhook_id, state, id)',
  'CREATE INDEX webhook_deliveries_ended ON ichido.webhook_deliveries (state, ended_at) WHERE ended_at IS NOT NULL',
]
