import type { Ddl } from '../migration.ts'
import { oftenUpdated } from './keys-and-limits.ts'

/** Leadership, settings, the audit log, alerts and counters. */
export const operation: readonly Ddl[] = [
  `CREATE TABLE ichido.leadership (
    id integer PRIMARY KEY,
    holder text,
    epoch bigint NOT NULL,
    expires_at bigint NOT NULL
  )`,
  'INSERT INTO ichido.leadership (id, epoch, expires_at) VALUES (1, 1, 0)',

  `CREATE TABLE ichido.settings (
    name text PRIMARY KEY,
    value text NOT NULL,
    updated_at bigint NOT NULL,
    updated_by text NOT NULL
  )`,

  // The audit log is read newest first, unfiltered or by actor, action or subject; retention removes the oldest rows.
  `CREATE TABLE ichido.audit (
    id uuid PRIMARY KEY,
    actor text NOT NULL,
    action text NOT NULL,
    subject text NOT NULL,
    before text,
    after text,
    created_at bigint NOT NULL
  )`,
  'CREATE INDEX audit_created ON ichido.audit (created_at, id)',
  'CREATE INDEX audit_actor ON ichido.audit (actor, created_at, id)',
  'CREATE INDEX audit_action ON ichido.audit (action, created_at, id)',
  'CREATE INDEX audit_subject ON ichido.audit (subject, created_at, id)',

  // A rule has at most one open alert for a subject.
  `CREATE TABLE ichido.alerts (
    id uuid PRIMARY KEY,
    rule text NOT NULL,
    subject text NOT NULL,
    message text NOT NULL,
    opened_at bigint NOT NULL,
    closed_at bigint
  )`,
  'CREATE UNIQUE INDEX alerts_open ON ichido.alerts (rule, subject) WHERE closed_at IS NULL',
  'CREATE INDEX alerts_closed ON ichido.alerts (closed_at) WHERE closed_at IS NOT NULL',

  // Alerts read these counts of each minute. Each process adds to its own rows and numbers its batches, so that a batch that is
  // retried after an uncertain commit does not count twice. `counted_by` is '' for the counts that a transaction adds itself.
  `CREATE TABLE ichido.minute_counts (
    minute bigint NOT NULL,
    name text NOT NULL,
    counted_by text NOT NULL,
    batch_n bigint NOT NULL,
    count bigint NOT NULL,
    PRIMARY KEY (minute, name, counted_by)
  )`,
  // A row counts the calls for a job that a node refused, replayed or fenced. Batches are numbered as in minute_counts.
  `CREATE TABLE ichido.once_counters (
    job_id uuid NOT NULL,
    node_id uuid NOT NULL,
    batch_n bigint NOT NULL,
    duplicates_refused bigint NOT NULL,
    replays_served bigint NOT NULL,
    stale_writes_fenced bigint NOT NULL,
    PRIMARY KEY (job_id, node_id)
  )`,

  // The figures of a queue in a block of `span` minutes that begins at the minute `at`. `counted_by` is '' for the samples of the
  // leader and for blocks that were rolled up. A node replaces its row of the current minute each second: no index contains a
  // column that this changes.
  oftenUpdated(`CREATE TABLE ichido.queue_series (
    queue text NOT NULL,
    at bigint NOT NULL,
    span integer NOT NULL,
    counted_by text NOT NULL,
    batch_n bigint NOT NULL,
    activity bigint NOT NULL,
    figures text NOT NULL,
    PRIMARY KEY (queue, at, span, counted_by)
  )`),
  'CREATE INDEX queue_series_span ON ichido.queue_series (span, at)',

  // The relay has sent the events of all jobs to Redis up to this position. `checkpoints` are earlier positions.
  `CREATE TABLE ichido.relay_watermark (
    id integer PRIMARY KEY,
    tx bigint NOT NULL,
    job_id uuid NOT NULL,
    n bigint NOT NULL,
    checkpoints text NOT NULL
  )`,
]
