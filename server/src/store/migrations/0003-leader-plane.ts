import type { Migration } from './migration.ts'

export const leaderPlane: Migration = {
  version: 3,
  name: 'leader plane',
  statements: [
    // Definitions and schedules. A tick's job is submitted for the user who made the definition.
    "ALTER TABLE ichido.job_definitions ADD COLUMN user_id text NOT NULL DEFAULT 'local'",
    'ALTER TABLE ichido.job_definitions ADD COLUMN priority integer NOT NULL DEFAULT 0',
    'ALTER TABLE ichido.job_definitions ADD COLUMN labels text',
    "ALTER TABLE ichido.job_definitions ADD COLUMN seq_scope text NOT NULL DEFAULT 'attempt'",
    'ALTER TABLE ichido.job_definitions ADD COLUMN paused_at bigint',
    'ALTER TABLE ichido.job_definitions ADD COLUMN version integer NOT NULL DEFAULT 1',
    'ALTER TABLE ichido.job_definitions ADD COLUMN last_tick_at bigint',
    `CREATE INDEX job_definitions_due ON ichido.job_definitions (next_tick_at)
      WHERE next_tick_at IS NOT NULL AND paused_at IS NULL`,
    // The ledger. What waits, for a free slot or for the job before, is tried again.
    "ALTER TABLE ichido.occurrences ADD COLUMN origin text NOT NULL DEFAULT 'schedule'",
    'ALTER TABLE ichido.occurrences ADD COLUMN reason text',
    'ALTER TABLE ichido.occurrences ADD COLUMN run_at bigint',
    'ALTER TABLE ichido.occurrences ADD COLUMN updated_at bigint NOT NULL DEFAULT 0',
    `CREATE INDEX occurrences_waiting ON ichido.occurrences (definition_id, scheduled_for)
      WHERE outcome IN ('waiting_quota', 'waiting_overlap')`,
    // The audit is read newest first, all of it or by one of its three names, and removed from its other end.
    'CREATE INDEX audit_created ON ichido.audit (created_at, id)',
    'CREATE INDEX audit_actor ON ichido.audit (actor, created_at, id)',
    'CREATE INDEX audit_action ON ichido.audit (action, created_at, id)',
    'CREATE INDEX audit_subject ON ichido.audit (subject, created_at, id)',
    // One alert is open for a rule and what it is about.
    'CREATE UNIQUE INDEX alerts_open ON ichido.alerts (rule, subject) WHERE closed_at IS NULL',
    'CREATE INDEX alerts_closed ON ichido.alerts (closed_at) WHERE closed_at IS NOT NULL',
    // Ticks. A run knows its definition, so that one whose jobs must not overlap finds those that have not ended.
    'ALTER TABLE ichido.runs ADD COLUMN definition_id uuid',
    `CREATE INDEX runs_definition ON ichido.runs (definition_id)
      WHERE definition_id IS NOT NULL AND latest AND state IN ('PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING')`,
    // A skip may stand for all ticks up to here: an outage of a day is 86,400 ticks of a schedule of every second.
    'ALTER TABLE ichido.occurrences ADD COLUMN skipped_until bigint',
    `CREATE INDEX occurrences_skipped ON ichido.occurrences (definition_id, scheduled_for)
      WHERE skipped_until IS NOT NULL`,
    // A backfill goes by the rule that it began with.
    `CREATE TABLE ichido.backfills (
      id uuid PRIMARY KEY,
      definition_id uuid NOT NULL,
      actor text NOT NULL,
      from_at bigint NOT NULL,
      to_at bigint NOT NULL,
      at bigint NOT NULL,
      schedule text NOT NULL,
      state text NOT NULL,
      version integer NOT NULL,
      matched integer NOT NULL,
      made integer NOT NULL,
      made_before integer NOT NULL,
      skipped integer NOT NULL,
      began_at bigint NOT NULL,
      ended_at bigint
    )`,
    'CREATE INDEX backfills_definition ON ichido.backfills (definition_id, id)',
    "CREATE INDEX backfills_running ON ichido.backfills (id) WHERE state = 'running'",

    // Logs. The first chunk of a run's log leads to it when it is old enough to be archived; in the rows of nodes that do not
    // know of this every chunk does.
    'ALTER TABLE ichido.run_logs ADD COLUMN head boolean NOT NULL DEFAULT true',
    'CREATE INDEX run_logs_head ON ichido.run_logs (created_at, run_id) WHERE head',

    // Retention. What nodes refused, replayed and fenced of a job. Each process adds to a row of its own and numbers what it
    // adds, so that a batch that is tried again after an uncertain commit does not count twice.
    `CREATE TABLE ichido.once_counters (
      job_id uuid NOT NULL,
      node_id uuid NOT NULL,
      batch_n bigint NOT NULL,
      duplicates_refused bigint NOT NULL,
      replays_served bigint NOT NULL,
      stale_writes_fenced bigint NOT NULL,
      PRIMARY KEY (job_id, node_id)
    )`,

    // Relay. Up to where the events of all jobs have been taken to Redis: a place among them, and where that was earlier.
    `CREATE TABLE ichido.relay_watermark (
      id integer PRIMARY KEY,
      tx bigint NOT NULL,
      job_id uuid NOT NULL,
      n bigint NOT NULL,
      checkpoints text NOT NULL
    )`,

    // Leases. With the poll in it, whether a poll was answered before is one look, not one at all that its worker holds.
    'DROP INDEX ichido.runs_live',
    `CREATE INDEX runs_live ON ichido.runs (assigned_worker_id, poll_id, id) WHERE state IN ('ASSIGNED', 'RUNNING')`,
    // Results are found by their runs.
    'DROP INDEX ichido.results_job',
  ],
  postgresOnly: [
    // Events. Readers of all jobs go by the transaction that wrote an event (hazard 13); SQLite has the rowid for it. What is
    // there already is said to be written by this one, without touching it. The index costs an insert next to nothing, where
    // a tree on the same column cost a quarter of its time.
    'ALTER TABLE ichido.events ADD COLUMN tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint',
    'CREATE INDEX events_tx ON ichido.events USING brin (tx) WITH (pages_per_range = 32, autosummarize = on)',
    // A lease in one statement: what it waits for may have changed since its snapshot, and a function that is volatile has
    // a newer one.
    `CREATE FUNCTION ichido.lease_is_plain(queue text, workers text[], polls text[]) RETURNS boolean
      LANGUAGE plpgsql VOLATILE AS $$
      BEGIN
        RETURN NOT EXISTS (SELECT 1 FROM ichido.queues q
            WHERE q.name = queue AND (q.paused_at IS NOT NULL OR q.max_concurrent IS NOT NULL))
          AND NOT EXISTS (SELECT 1 FROM unnest(workers, polls) AS t(worker_id, poll_id) CROSS JOIN LATERAL (
            SELECT 1 FROM ichido.runs r WHERE r.assigned_worker_id = t.worker_id AND r.poll_id = t.poll_id
              AND r.state IN ('ASSIGNED', 'RUNNING') AND r.lease_id IS NOT NULL LIMIT 1) r);
      END $$`,
  ],
}
