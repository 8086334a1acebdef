import type { Ddl } from '../migration.ts'

/** The columns of a run that has not ended. */
const LIVE_RUN = `job_id uuid PRIMARY KEY,
      run_id uuid NOT NULL,
      run_no integer NOT NULL,
      queue text NOT NULL,
      kind text NOT NULL,
      user_id text NOT NULL,
      attempt integer NOT NULL,
      retry_count integer NOT NULL,
      version integer NOT NULL,
      priority integer NOT NULL,
      run_at bigint NOT NULL,
      fair_tag bigint,
      created_at bigint NOT NULL,
      definition_id uuid,
      n bigint NOT NULL`

/** Every lease and every heartbeat leaves a dead row: vacuum when 2% of a table are dead, not the default of 20%. */
const OFTEN_VACUUMED = 'autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02'

/** On SQLite a room is stored in the order of its primary key: a job is found in one tree instead of two. */
function room(table: string, options = ''): Ddl {
  return { postgres: `${table}${options}`, sqlite: `${table} STRICT, WITHOUT ROWID` }
}

/** Jobs, and the rooms that their runs go through: a job's current run is in `ready`, `held` or `ended`. */
export const jobs: readonly Ddl[] = [
  `CREATE TABLE ichido.jobs (
    id uuid PRIMARY KEY,
    kind text NOT NULL,
    queue text NOT NULL,
    user_id text NOT NULL,
    payload text NOT NULL,
    policy text NOT NULL,
    priority integer NOT NULL,
    labels text,
    definition_id uuid,
    scheduled_for bigint,
    replaces_job_id uuid,
    estimated_cost_micros bigint NOT NULL,
    traceparent text,
    created_at bigint NOT NULL
  )`,
  'CREATE INDEX jobs_user ON ichido.jobs (user_id, id)',
  'CREATE INDEX jobs_queue ON ichido.jobs (queue, id)',
  'CREATE INDEX jobs_kind ON ichido.jobs (kind, id)',
  'CREATE UNIQUE INDEX jobs_tick ON ichido.jobs (definition_id, scheduled_for) WHERE definition_id IS NOT NULL',
  // A job is replaced once, and it is not retried after that.
  'CREATE UNIQUE INDEX jobs_replaces ON ichido.jobs (replaces_job_id) WHERE replaces_job_id IS NOT NULL',

  `CREATE TABLE ichido.job_labels (
    name text NOT NULL,
    value text NOT NULL,
    job_id uuid NOT NULL,
    PRIMARY KEY (name, value, job_id)
  )`,
  'CREATE INDEX job_labels_job ON ichido.job_labels (job_id)',

  // The table holds the queues, domains and label names that each user has used recently.
  `CREATE TABLE ichido.user_names (
    user_id text NOT NULL,
    sort text NOT NULL,
    name text NOT NULL,
    seen_at bigint NOT NULL,
    PRIMARY KEY (user_id, sort, name)
  )`,
  'CREATE INDEX user_names_seen ON ichido.user_names (seen_at)',

  // These runs may be leased now, or later: a delayed run has no fair_tag yet. `bytes` is the size of the payload. The job's own
  // policy gives lease_ttl_ms and continuation_ms; null: the policy does not set it. An orphan keeps its last holder in
  // worker_id, token and assigned_at; null: no worker had the run.
  room(
    `CREATE TABLE ichido.ready (
      ${LIVE_RUN},
      bytes integer NOT NULL,
      lease_ttl_ms bigint,
      continuation_ms bigint,
      worker_id text,
      token text,
      assigned_at bigint
    )`,
    ` WITH (${OFTEN_VACUUMED})`,
  ),
  `CREATE INDEX ready_order ON ichido.ready (queue, kind, priority DESC, fair_tag, job_id)
    WHERE fair_tag IS NOT NULL`,
  'CREATE INDEX ready_delayed ON ichido.ready (run_at) WHERE fair_tag IS NULL',
  // One lookup finds a user's last tag in a queue. No other statement has this condition: PostgreSQL would use this index in place
  // of ready_order.
  `CREATE INDEX ready_last_tag ON ichido.ready (user_id, queue, priority, fair_tag)
    WHERE fair_tag >= 0`,
  // Every run has a version. But a statement must name this condition to use the index: while the table is small, PostgreSQL would
  // take this index for a single job, and read all of it.
  'CREATE INDEX ready_user ON ichido.ready (user_id, job_id) WHERE version > 0',
  'CREATE INDEX ready_orphaned ON ichido.ready (job_id) WHERE worker_id IS NOT NULL',
  // A definition whose jobs must not overlap finds its jobs that have not ended here and in held_definition.
  'CREATE INDEX ready_definition ON ichido.ready (definition_id) WHERE definition_id IS NOT NULL',

  // A worker holds each of these runs. It keeps the lease_ttl_ms and continuation_ms that it was told with the lease: a later
  // change of the queue's settings does not apply to it. `deadline_at` is set when the lease has expired: the leader waits for
  // the worker until then (CONFIRMING).
  // No index contains a column that a heartbeat writes (lease_expires_at, deadline_at): one such index costs two thirds of the
  // heartbeats per second. The free space on each page takes the next version of a row, so that a heartbeat leaves the indexes
  // alone (HOT).
  room(
    `CREATE TABLE ichido.held (
      ${LIVE_RUN},
      worker_id text NOT NULL,
      poll_id text,
      token text,
      assigned_at bigint NOT NULL,
      lease_expires_at bigint NOT NULL,
      lease_ttl_ms bigint NOT NULL,
      continuation_ms bigint NOT NULL,
      start_id text,
      started_at bigint,
      leader_epoch bigint,
      deadline_at bigint,
      cancel_requested_at bigint,
      error text
    )`,
    ` WITH (fillfactor = 45, ${OFTEN_VACUUMED})`,
  ),
  // With poll_id in the index, one lookup tells whether a poll was answered before; without it, the lookup would read all runs
  // that the worker holds.
  'CREATE INDEX held_poll ON ichido.held (worker_id, poll_id)',
  // Without job_id: while the table is small, PostgreSQL would take this index for the jobs of a finish, and read all of it for each.
  'CREATE INDEX held_user ON ichido.held (user_id)',
  'CREATE INDEX held_definition ON ichido.held (definition_id) WHERE definition_id IS NOT NULL',

  // Each ended run has one row, which is written once. Later only `latest` changes, when the job is retried, and the events' columns,
  // when the events are removed.
  room(`CREATE TABLE ichido.ended (
      job_id uuid NOT NULL,
      run_no integer NOT NULL,
      run_id uuid NOT NULL,
      user_id text NOT NULL,
      latest boolean NOT NULL,
      state text NOT NULL,
      attempt integer NOT NULL,
      retry_count integer NOT NULL,
      version integer NOT NULL,
      run_at bigint NOT NULL,
      fair_tag bigint,
      created_at bigint NOT NULL,
      worker_id text,
      token text,
      assigned_at bigint,
      start_id text,
      started_at bigint,
      leader_epoch bigint,
      lease_expires_at bigint,
      cancel_requested_at bigint,
      finished_at bigint NOT NULL,
      n bigint NOT NULL,
      outcome_hash text,
      error text,
      PRIMARY KEY (job_id, run_no)
    )`),
  // On PostgreSQL these columns are the events of a lease that starts its runs, and of every end: their number, and the
  // transaction that wrote them. Rows of `events` for them cost a fifth of a drained job. They are null when there is a row, or
  // when the events of the job were removed.
  { postgres: 'ALTER TABLE ichido.held ADD COLUMN leased_n integer, ADD COLUMN leased_tx bigint' },
  {
    postgres: `ALTER TABLE ichido.ended ADD COLUMN leased_n integer, ADD COLUMN leased_tx bigint,
      ADD COLUMN ended_n integer, ADD COLUMN ended_tx bigint`,
  },
  { postgres: 'CREATE INDEX held_leased_tx ON ichido.held (leased_tx) WHERE leased_tx IS NOT NULL' },
  { postgres: 'CREATE INDEX ended_leased_tx ON ichido.ended (leased_tx) WHERE leased_tx IS NOT NULL' },
  { postgres: 'CREATE INDEX ended_ended_tx ON ichido.ended (ended_tx) WHERE ended_tx IS NOT NULL' },
  // Most runs succeed, and they pay for no index but the primary key. Both indexes end with job_id, so that a page of a list
  // reads only its own rows.
  "CREATE INDEX ended_unsuccessful ON ichido.ended (state, job_id) WHERE latest AND state <> 'SUCCEEDED'",
  "CREATE INDEX ended_user ON ichido.ended (user_id, state, job_id) WHERE latest AND state <> 'SUCCEEDED'",
]
