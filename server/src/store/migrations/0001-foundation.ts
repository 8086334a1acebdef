import type { Migration } from './migration.ts'

/**
 * Names follow the seeds where they give them. Times are integer milliseconds, money is integer millionths,
 * JSON is text: it is read back as it was written, and no value in it can fail an insert.
 */
export const foundation: Migration = {
  version: 1,
  name: 'foundation',
  statements: [
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

    `CREATE TABLE ichido.job_labels (
      name text NOT NULL,
      value text NOT NULL,
      job_id uuid NOT NULL,
      PRIMARY KEY (name, value, job_id)
    )`,
    'CREATE INDEX job_labels_job ON ichido.job_labels (job_id)',

    // Narrow and hot. No index holds a column that a heartbeat writes (lease_expires_at, continuation_*):
    // one such index costs two thirds of the heartbeats per second.
    `CREATE TABLE ichido.runs (
      id uuid PRIMARY KEY,
      job_id uuid NOT NULL,
      run_no integer NOT NULL,
      latest boolean NOT NULL,
      queue text NOT NULL,
      kind text NOT NULL,
      user_id text NOT NULL,
      attempt integer NOT NULL,
      retry_count integer NOT NULL,
      state text NOT NULL,
      version integer NOT NULL,
      priority integer NOT NULL,
      run_at bigint NOT NULL,
      fair_tag bigint,
      created_at bigint NOT NULL,
      assigned_worker_id text,
      assigned_at bigint,
      poll_id text,
      lease_id text,
      lease_expires_at bigint,
      leader_epoch bigint,
      start_id text,
      started_at bigint,
      finished_at bigint,
      continuation_state text NOT NULL,
      continuation_check_deadline_at bigint,
      cancel_requested_at bigint,
      last_event_n bigint NOT NULL,
      outcome_hash text,
      error text
    )`,
    'CREATE UNIQUE INDEX runs_job ON ichido.runs (job_id, run_no)',
    `CREATE INDEX runs_ready ON ichido.runs (queue, kind, priority DESC, fair_tag, id)
      WHERE state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL`,
    "CREATE INDEX runs_delayed ON ichido.runs (run_at) WHERE state = 'PENDING' AND fair_tag IS NULL",
    // Counts what a user has in use, and lists its jobs of a state: without job_id a page would read all of them.
    'CREATE INDEX runs_user ON ichido.runs (user_id, state, job_id) WHERE latest',
    "CREATE INDEX runs_live ON ichido.runs (assigned_worker_id, id) WHERE state IN ('ASSIGNED', 'RUNNING')",
    'CREATE INDEX runs_state ON ichido.runs (state, job_id) WHERE latest',

    `CREATE TABLE ichido.results (
      run_id uuid PRIMARY KEY,
      job_id uuid NOT NULL,
      result text,
      summary_text text,
      freqs_csv text,
      meta text,
      cost_micros bigint,
      created_at bigint NOT NULL
    )`,
    'CREATE INDEX results_job ON ichido.results (job_id)',

    `CREATE TABLE ichido.run_logs (
      run_id uuid NOT NULL,
      n integer NOT NULL,
      stream text NOT NULL,
      chunk text,
      log_ref text,
      created_at bigint NOT NULL,
      PRIMARY KEY (run_id, n)
    )`,

    `CREATE TABLE ichido.dead_letters (
      job_id uuid PRIMARY KEY,
      run_id uuid NOT NULL,
      queue text NOT NULL,
      kind text NOT NULL,
      user_id text NOT NULL,
      error_code text NOT NULL,
      error_message text NOT NULL,
      retry_count integer NOT NULL,
      dead_at bigint NOT NULL
    )`,
    'CREATE INDEX dead_letters_time ON ichido.dead_letters (dead_at, job_id)',

    // n is the cursor: gapless per job, raised under the run's row lock, so that commit order and n agree.
    `CREATE TABLE ichido.events (
      job_id uuid NOT NULL,
      n bigint NOT NULL,
      stage text NOT NULL,
      seq bigint NOT NULL,
      domain text NOT NULL,
      data text NOT NULL,
      created_at bigint NOT NULL,
      PRIMARY KEY (job_id, n)
    )`,
    // The lifecycle (stage run) is written by the server alone and numbered by n, so only what workers publish
    // needs its identity held by an index of its own.
    "CREATE UNIQUE INDEX events_identity ON ichido.events (job_id, stage, seq) WHERE stage <> 'run'",

    `CREATE TABLE ichido.artifacts (
      id uuid PRIMARY KEY,
      job_id uuid,
      user_id text NOT NULL,
      name text NOT NULL,
      sha256 text NOT NULL,
      size_bytes bigint NOT NULL,
      state text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint
    )`,
    'CREATE INDEX artifacts_job ON ichido.artifacts (job_id)',

    // The key stands first: an operator looks a key up without knowing whose it is.
    `CREATE TABLE ichido.idempotency_keys (
      idempotency_key text NOT NULL,
      user_id text NOT NULL,
      operation text NOT NULL,
      request_hash text NOT NULL,
      hash_version integer NOT NULL,
      job_id uuid NOT NULL,
      response_status integer NOT NULL,
      response_body text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint NOT NULL,
      PRIMARY KEY (idempotency_key, user_id, operation)
    )`,
    'CREATE UNIQUE INDEX idempotency_keys_job ON ichido.idempotency_keys (job_id)',
    'CREATE INDEX idempotency_keys_expires ON ichido.idempotency_keys (expires_at)',

    `CREATE TABLE ichido.job_reservations (
      reservation_id uuid PRIMARY KEY,
      user_id text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint NOT NULL,
      consumed_at bigint,
      released_at bigint,
      job_id uuid
    )`,
    'CREATE INDEX job_reservations_user ON ichido.job_reservations (user_id, reservation_id)',
    `CREATE INDEX job_reservations_open ON ichido.job_reservations (user_id, expires_at)
      WHERE consumed_at IS NULL AND released_at IS NULL`,

    // The row of a user is also the lock that its submits queue up behind; rows made for that alone are not custom
    // and take their limits from the row '*'.
    `CREATE TABLE ichido.quotas (
      user_id text PRIMARY KEY,
      custom boolean NOT NULL,
      max_concurrent integer,
      cost_limit_micros bigint,
      period text NOT NULL,
      updated_at bigint NOT NULL
    )`,
    "INSERT INTO ichido.quotas VALUES ('*', true, NULL, NULL, 'month', 0)",
    `CREATE TABLE ichido.cost_counters (
      user_id text NOT NULL,
      period text NOT NULL,
      period_start bigint NOT NULL,
      spent_micros bigint NOT NULL,
      PRIMARY KEY (user_id, period, period_start)
    )`,

    `CREATE TABLE ichido.users (
      user_id text PRIMARY KEY,
      created_at bigint NOT NULL
    )`,
    `CREATE TABLE ichido.api_tokens (
      token_id uuid PRIMARY KEY,
      token_hash text NOT NULL UNIQUE,
      user_id text NOT NULL,
      role text NOT NULL,
      name text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint,
      revoked_at bigint
    )`,
    `CREATE TABLE ichido.workers (
      worker_id text PRIMARY KEY,
      name text NOT NULL,
      queues text NOT NULL,
      created_at bigint NOT NULL,
      last_seen_at bigint,
      detached_at bigint,
      revoked_at bigint
    )`,
    `CREATE TABLE ichido.worker_tokens (
      token_hash text PRIMARY KEY,
      worker_id text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint NOT NULL,
      revoked_at bigint
    )`,
    `CREATE TABLE ichido.enroll_tokens (
      token_hash text PRIMARY KEY,
      label text,
      queues text,
      created_by text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint NOT NULL,
      used_at bigint,
      worker_id text
    )`,

    `CREATE TABLE ichido.queues (
      name text PRIMARY KEY,
      paused_at bigint,
      max_concurrent integer,
      lease_ttl_seconds integer,
      continuation_seconds integer,
      result_ttl_seconds integer
    )`,
    `CREATE TABLE ichido.leadership (
      id integer PRIMARY KEY,
      holder text,
      epoch bigint NOT NULL,
      expires_at bigint NOT NULL
    )`,
    'INSERT INTO ichido.leadership VALUES (1, NULL, 1, 0)',

    `CREATE TABLE ichido.job_definitions (
      id uuid PRIMARY KEY,
      name text NOT NULL UNIQUE,
      kind text,
      queue text,
      payload text NOT NULL,
      policy text NOT NULL,
      domain text,
      stages text,
      schedule text,
      next_tick_at bigint,
      created_at bigint NOT NULL,
      updated_at bigint NOT NULL
    )`,
    `CREATE TABLE ichido.occurrences (
      definition_id uuid NOT NULL,
      scheduled_for bigint NOT NULL,
      outcome text NOT NULL,
      job_id uuid,
      created_at bigint NOT NULL,
      PRIMARY KEY (definition_id, scheduled_for)
    )`,
    `CREATE TABLE ichido.settings (
      name text PRIMARY KEY,
      value text NOT NULL,
      updated_at bigint NOT NULL,
      updated_by text NOT NULL
    )`,
    `CREATE TABLE ichido.audit (
      id uuid PRIMARY KEY,
      actor text NOT NULL,
      action text NOT NULL,
      subject text NOT NULL,
      before text,
      after text,
      created_at bigint NOT NULL
    )`,
    `CREATE TABLE ichido.alerts (
      id uuid PRIMARY KEY,
      rule text NOT NULL,
      subject text NOT NULL,
      message text NOT NULL,
      opened_at bigint NOT NULL,
      closed_at bigint
    )`,
  ],
  postgresOnly: [
    // Room on each page for the next version of a row keeps heartbeats and transitions off the indexes (HOT).
    'ALTER TABLE ichido.runs SET (fillfactor = 60, autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02)',
    'ALTER TABLE ichido.quotas SET (fillfactor = 50)',
    'ALTER TABLE ichido.cost_counters SET (fillfactor = 50)',
  ],
}
