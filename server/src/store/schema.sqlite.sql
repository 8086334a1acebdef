-- What the migrations make on SQLite. Made by: ICHIDO_UPDATE_SCHEMA=1 npm test server/src/store/schema.test.ts

CREATE TABLE alerts (
  id TEXT PRIMARY KEY,
  rule text NOT NULL,
  subject text NOT NULL,
  message text NOT NULL,
  opened_at INTEGER NOT NULL,
  closed_at INTEGER
) STRICT;

CREATE INDEX alerts_closed ON alerts (closed_at) WHERE closed_at IS NOT NULL;

CREATE UNIQUE INDEX alerts_open ON alerts (rule, subject) WHERE closed_at IS NULL;

CREATE TABLE api_tokens (
  token_id TEXT PRIMARY KEY,
  token_hash text NOT NULL UNIQUE,
  user_id text NOT NULL,
  role text NOT NULL,
  name text NOT NULL,
  stream_key text,
  created_at INTEGER NOT NULL,
  expires_at INTEGER,
  revoked_at INTEGER
) STRICT;

CREATE TABLE artifacts (
  id TEXT PRIMARY KEY,
  job_id TEXT,
  run_id TEXT,
  user_id text NOT NULL,
  name text NOT NULL,
  sha256 text,
  size_bytes INTEGER,
  blob_id TEXT,
  state text NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER
) STRICT;

CREATE INDEX artifacts_blob ON artifacts (blob_id) WHERE blob_id IS NOT NULL;

CREATE INDEX artifacts_content ON artifacts (user_id, sha256) WHERE state = 'ready';

CREATE INDEX artifacts_expires ON artifacts (expires_at) WHERE expires_at IS NOT NULL;

CREATE UNIQUE INDEX artifacts_input ON artifacts (job_id, name) WHERE run_id IS NULL AND job_id IS NOT NULL;

CREATE INDEX artifacts_job ON artifacts (job_id, id);

CREATE UNIQUE INDEX artifacts_output ON artifacts (run_id, name) WHERE run_id IS NOT NULL;

CREATE UNIQUE INDEX artifacts_unbound ON artifacts (user_id, name)
WHERE job_id IS NULL AND state = 'awaited';

CREATE TABLE audit (
  id TEXT PRIMARY KEY,
  actor text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  before text,
  after text,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX audit_action ON audit (action, created_at, id);

CREATE INDEX audit_actor ON audit (actor, created_at, id);

CREATE INDEX audit_created ON audit (created_at, id);

CREATE INDEX audit_subject ON audit (subject, created_at, id);

CREATE TABLE backfills (
  id TEXT PRIMARY KEY,
  definition_id TEXT NOT NULL,
  actor text NOT NULL,
  from_at INTEGER NOT NULL,
  to_at INTEGER NOT NULL,
  at INTEGER NOT NULL,
  schedule text NOT NULL,
  state text NOT NULL,
  version integer NOT NULL,
  matched integer NOT NULL,
  made integer NOT NULL,
  made_before integer NOT NULL,
  skipped integer NOT NULL,
  began_at INTEGER NOT NULL,
  ended_at INTEGER
) STRICT;

CREATE INDEX backfills_definition ON backfills (definition_id, id);

CREATE INDEX backfills_running ON backfills (id) WHERE state = 'running';

CREATE TABLE blobs (
  blob_id TEXT PRIMARY KEY,
  sha256 text NOT NULL UNIQUE,
  size_bytes INTEGER NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE callback_secrets (
  user_id text PRIMARY KEY,
  secret text NOT NULL,
  old_secret text,
  old_secret_until INTEGER
) STRICT;

CREATE TABLE callbacks (
  job_id TEXT PRIMARY KEY,
  url text NOT NULL
) STRICT;

CREATE TABLE cost_counters (
  user_id text NOT NULL,
  period text NOT NULL,
  period_start INTEGER NOT NULL,
  spent_micros INTEGER NOT NULL,
  PRIMARY KEY (user_id, period, period_start)
) STRICT;

CREATE TABLE dead_letters (
  job_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  user_id text NOT NULL,
  error_code text NOT NULL,
  error_message text NOT NULL,
  retry_count integer NOT NULL,
  redrive_id TEXT,
  dead_at INTEGER NOT NULL
) STRICT;

CREATE INDEX dead_letters_queue ON dead_letters (queue, dead_at, job_id);

CREATE INDEX dead_letters_redrive ON dead_letters (redrive_id, user_id, job_id)
WHERE redrive_id IS NOT NULL;

CREATE INDEX dead_letters_time ON dead_letters (dead_at, job_id);

CREATE INDEX dead_letters_user ON dead_letters (user_id, dead_at, job_id);

CREATE TABLE ended (
  job_id TEXT NOT NULL,
  run_no integer NOT NULL,
  run_id TEXT NOT NULL,
  user_id text NOT NULL,
  latest INTEGER NOT NULL,
  state text NOT NULL,
  attempt integer NOT NULL,
  retry_count integer NOT NULL,
  version integer NOT NULL,
  run_at INTEGER NOT NULL,
  fair_tag INTEGER,
  created_at INTEGER NOT NULL,
  worker_id text,
  token text,
  assigned_at INTEGER,
  start_id text,
  started_at INTEGER,
  leader_epoch INTEGER,
  lease_expires_at INTEGER,
  cancel_requested_at INTEGER,
  finished_at INTEGER NOT NULL,
  n INTEGER NOT NULL,
  outcome_hash text,
  error text,
  PRIMARY KEY (job_id, run_no)
) STRICT, WITHOUT ROWID;

CREATE INDEX ended_unsuccessful ON ended (state, job_id) WHERE latest AND state <> 'SUCCEEDED';

CREATE INDEX ended_user ON ended (user_id, state, job_id) WHERE latest AND state <> 'SUCCEEDED';

CREATE TABLE enroll_tokens (
  token_hash text PRIMARY KEY,
  label text,
  queues text,
  created_by text NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  used_at INTEGER,
  worker_id text,
  register_hash text
) STRICT;

CREATE TABLE events (
  job_id TEXT NOT NULL,
  n INTEGER NOT NULL,
  stage text NOT NULL,
  seq INTEGER NOT NULL,
  domain text NOT NULL,
  data text NOT NULL,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (job_id, n)
) STRICT;

CREATE UNIQUE INDEX events_identity ON events (job_id, stage, seq) WHERE stage <> 'run';

CREATE TABLE expired_keys (
  job_id TEXT PRIMARY KEY,
  idempotency_key text NOT NULL,
  user_id text NOT NULL,
  operation text NOT NULL,
  request_hash text NOT NULL,
  hash_version integer NOT NULL,
  response_status integer NOT NULL,
  response_body text NOT NULL,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE held (
  job_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  run_no integer NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  user_id text NOT NULL,
  attempt integer NOT NULL,
  retry_count integer NOT NULL,
  version integer NOT NULL,
  priority integer NOT NULL,
  run_at INTEGER NOT NULL,
  fair_tag INTEGER,
  created_at INTEGER NOT NULL,
  definition_id TEXT,
  n INTEGER NOT NULL,
  worker_id text NOT NULL,
  poll_id text,
  token text,
  assigned_at INTEGER NOT NULL,
  lease_expires_at INTEGER NOT NULL,
  lease_ttl_ms INTEGER NOT NULL,
  continuation_ms INTEGER NOT NULL,
  start_id text,
  started_at INTEGER,
  leader_epoch INTEGER,
  deadline_at INTEGER,
  cancel_requested_at INTEGER,
  error text
) STRICT, WITHOUT ROWID;

CREATE INDEX held_definition ON held (definition_id) WHERE definition_id IS NOT NULL;

CREATE INDEX held_poll ON held (worker_id, poll_id);

CREATE INDEX held_user ON held (user_id);

CREATE TABLE hooks (
  id TEXT PRIMARY KEY,
  name text NOT NULL UNIQUE,
  scheme text NOT NULL,
  topic text NOT NULL,
  secret text NOT NULL,
  user_id text NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE idempotency_keys (
  idempotency_key text NOT NULL,
  user_id text NOT NULL,
  operation text NOT NULL,
  request_hash text NOT NULL,
  hash_version integer NOT NULL,
  job_id TEXT NOT NULL,
  response_status integer NOT NULL,
  response_body text NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  PRIMARY KEY (idempotency_key, user_id, operation)
) STRICT;

CREATE INDEX idempotency_keys_expires ON idempotency_keys (expires_at);

CREATE UNIQUE INDEX idempotency_keys_job ON idempotency_keys (job_id);

CREATE TABLE job_definitions (
  id TEXT PRIMARY KEY,
  name text NOT NULL UNIQUE,
  user_id text NOT NULL DEFAULT 'local',
  kind text,
  queue text,
  payload text NOT NULL,
  policy text NOT NULL,
  priority integer NOT NULL DEFAULT 0,
  labels text,
  domain text,
  stages text,
  seq_scope text NOT NULL DEFAULT 'attempt',
  schedule text,
  topic text,
  on_trigger text,
  version integer NOT NULL DEFAULT 1,
  paused_at INTEGER,
  last_tick_at INTEGER,
  next_tick_at INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE INDEX job_definitions_due ON job_definitions (next_tick_at)
WHERE next_tick_at IS NOT NULL AND paused_at IS NULL;

CREATE INDEX job_definitions_topic ON job_definitions (topic) WHERE topic IS NOT NULL;

CREATE TABLE job_labels (
  name text NOT NULL,
  value text NOT NULL,
  job_id TEXT NOT NULL,
  PRIMARY KEY (name, value, job_id)
) STRICT;

CREATE INDEX job_labels_job ON job_labels (job_id);

CREATE TABLE job_reservations (
  reservation_id TEXT PRIMARY KEY,
  user_id text NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  consumed_at INTEGER,
  released_at INTEGER,
  job_id TEXT
) STRICT;

CREATE INDEX job_reservations_open ON job_reservations (user_id, expires_at)
WHERE consumed_at IS NULL AND released_at IS NULL;

CREATE INDEX job_reservations_user ON job_reservations (user_id, reservation_id);

CREATE TABLE jobs (
  id TEXT PRIMARY KEY,
  kind text NOT NULL,
  queue text NOT NULL,
  user_id text NOT NULL,
  payload text NOT NULL,
  policy text NOT NULL,
  priority integer NOT NULL,
  labels text,
  definition_id TEXT,
  scheduled_for INTEGER,
  replaces_job_id TEXT,
  estimated_cost_micros INTEGER NOT NULL,
  traceparent text,
  created_at INTEGER NOT NULL
) STRICT;

CREATE INDEX jobs_kind ON jobs (kind, id);

CREATE INDEX jobs_queue ON jobs (queue, id);

CREATE UNIQUE INDEX jobs_replaces ON jobs (replaces_job_id) WHERE replaces_job_id IS NOT NULL;

CREATE UNIQUE INDEX jobs_tick ON jobs (definition_id, scheduled_for) WHERE definition_id IS NOT NULL;

CREATE INDEX jobs_user ON jobs (user_id, id);

CREATE TABLE leadership (
  id integer PRIMARY KEY,
  holder text,
  epoch INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;

CREATE TABLE minute_counts (
  minute INTEGER NOT NULL,
  name text NOT NULL,
  counted_by text NOT NULL,
  batch_n INTEGER NOT NULL,
  count INTEGER NOT NULL,
  PRIMARY KEY (minute, name, counted_by)
) STRICT;

CREATE TABLE occurrences (
  definition_id TEXT NOT NULL,
  scheduled_for INTEGER NOT NULL,
  origin text NOT NULL DEFAULT 'schedule',
  outcome text NOT NULL,
  reason text,
  job_id TEXT,
  run_at INTEGER,
  skipped_until INTEGER,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL DEFAULT 0,
  PRIMARY KEY (definition_id, scheduled_for)
) STRICT;

CREATE INDEX occurrences_skipped ON occurrences (definition_id, scheduled_for)
WHERE skipped_until IS NOT NULL;

CREATE INDEX occurrences_waiting ON occurrences (definition_id, scheduled_for)
WHERE outcome IN ('waiting_quota', 'waiting_overlap');

CREATE TABLE once_counters (
  job_id TEXT NOT NULL,
  node_id TEXT NOT NULL,
  batch_n INTEGER NOT NULL,
  duplicates_refused INTEGER NOT NULL,
  replays_served INTEGER NOT NULL,
  stale_writes_fenced INTEGER NOT NULL,
  PRIMARY KEY (job_id, node_id)
) STRICT;

CREATE TABLE operations (
  id TEXT PRIMARY KEY,
  action text NOT NULL,
  actor text NOT NULL,
  job_filter text,
  dead_filter text,
  job_ids text,
  per_second integer,
  state text NOT NULL,
  version integer NOT NULL,
  prepared INTEGER NOT NULL,
  at_dead_at INTEGER NOT NULL,
  at_user_id text NOT NULL,
  at_job_id TEXT NOT NULL,
  matched integer NOT NULL,
  done integer NOT NULL,
  waiting integer NOT NULL,
  skipped integer NOT NULL,
  refused integer NOT NULL,
  next_at INTEGER NOT NULL,
  began_at INTEGER NOT NULL,
  ended_at INTEGER
) STRICT;

CREATE INDEX operations_running ON operations (next_at) WHERE state = 'running';

CREATE TABLE queue_series (
  queue text NOT NULL,
  at INTEGER NOT NULL,
  span integer NOT NULL,
  counted_by text NOT NULL,
  batch_n INTEGER NOT NULL,
  activity INTEGER NOT NULL,
  figures text NOT NULL,
  PRIMARY KEY (queue, at, span, counted_by)
) STRICT;

CREATE INDEX queue_series_span ON queue_series (span, at);

CREATE TABLE queue_times (
  queue text NOT NULL,
  priority integer NOT NULL,
  tag INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (queue, priority)
) STRICT;

CREATE TABLE queues (
  name text PRIMARY KEY,
  paused_at INTEGER,
  max_concurrent integer,
  lease_ttl_seconds integer,
  continuation_seconds integer,
  result_ttl_seconds integer,
  fatal_error_codes text
) STRICT;

CREATE TABLE quotas (
  user_id text PRIMARY KEY,
  custom INTEGER NOT NULL,
  max_concurrent integer,
  cost_limit_micros INTEGER,
  period text NOT NULL,
  max_bytes INTEGER,
  used_bytes INTEGER,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE ready (
  job_id TEXT PRIMARY KEY,
  run_id TEXT NOT NULL,
  run_no integer NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  user_id text NOT NULL,
  attempt integer NOT NULL,
  retry_count integer NOT NULL,
  version integer NOT NULL,
  priority integer NOT NULL,
  run_at INTEGER NOT NULL,
  fair_tag INTEGER,
  created_at INTEGER NOT NULL,
  definition_id TEXT,
  n INTEGER NOT NULL,
  bytes integer NOT NULL,
  lease_ttl_ms INTEGER,
  continuation_ms INTEGER,
  worker_id text,
  token text,
  assigned_at INTEGER
) STRICT, WITHOUT ROWID;

CREATE INDEX ready_definition ON ready (definition_id) WHERE definition_id IS NOT NULL;

CREATE INDEX ready_delayed ON ready (run_at) WHERE fair_tag IS NULL;

CREATE INDEX ready_last_tag ON ready (user_id, queue, priority, fair_tag)
WHERE fair_tag >= 0;

CREATE INDEX ready_order ON ready (queue, kind, priority DESC, fair_tag, job_id)
WHERE fair_tag IS NOT NULL;

CREATE INDEX ready_orphaned ON ready (job_id) WHERE worker_id IS NOT NULL;

CREATE INDEX ready_user ON ready (user_id, job_id) WHERE version > 0;

CREATE TABLE relay_watermark (
  id integer PRIMARY KEY,
  tx INTEGER NOT NULL,
  job_id TEXT NOT NULL,
  n INTEGER NOT NULL,
  checkpoints text NOT NULL
) STRICT;

CREATE TABLE results (
  run_id TEXT PRIMARY KEY,
  job_id TEXT NOT NULL,
  result text,
  summary_text text,
  freqs_csv text,
  meta text,
  cost_micros INTEGER,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE run_logs (
  job_id TEXT NOT NULL,
  run_id TEXT NOT NULL,
  run_no integer NOT NULL,
  n integer NOT NULL,
  head INTEGER NOT NULL,
  stream text NOT NULL,
  chunk text,
  log_ref text,
  end_bytes INTEGER,
  created_at INTEGER NOT NULL,
  PRIMARY KEY (run_id, n)
) STRICT;

CREATE INDEX run_logs_head ON run_logs (created_at, run_id) WHERE head;

CREATE INDEX run_logs_job ON run_logs (job_id, run_no, n);

CREATE TABLE schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT;

CREATE TABLE sessions (
  session_id TEXT PRIMARY KEY,
  session_hash text NOT NULL UNIQUE,
  token_id TEXT NOT NULL,
  user_id text NOT NULL,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;

CREATE INDEX sessions_expiry ON sessions (expires_at);

CREATE INDEX sessions_token ON sessions (token_id);

CREATE TABLE settings (
  name text PRIMARY KEY,
  value text NOT NULL,
  updated_at INTEGER NOT NULL,
  updated_by text NOT NULL
) STRICT;

CREATE TABLE trigger_outcomes (
  definition_id TEXT NOT NULL,
  trigger_id TEXT NOT NULL,
  triggered_at INTEGER NOT NULL,
  outcome text NOT NULL,
  job_id TEXT,
  reason text,
  field text,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL,
  PRIMARY KEY (definition_id, trigger_id)
) STRICT;

CREATE INDEX trigger_outcomes_job ON trigger_outcomes (job_id) WHERE job_id IS NOT NULL;

CREATE INDEX trigger_outcomes_trigger ON trigger_outcomes (trigger_id);

CREATE INDEX trigger_outcomes_waiting ON trigger_outcomes (definition_id, triggered_at, trigger_id)
WHERE outcome IN ('waiting_quota', 'waiting_pause', 'waiting_turn');

CREATE TABLE triggers (
  id TEXT PRIMARY KEY,
  user_id text NOT NULL,
  operates INTEGER NOT NULL,
  topic text NOT NULL,
  dedupe_key text NOT NULL,
  data text NOT NULL,
  created_at INTEGER NOT NULL,
  processed_at INTEGER,
  settled_at INTEGER,
  UNIQUE (user_id, dedupe_key)
) STRICT;

CREATE INDEX triggers_settled ON triggers (settled_at) WHERE settled_at IS NOT NULL;

CREATE INDEX triggers_topic ON triggers (topic, id);

CREATE INDEX triggers_unprocessed ON triggers (created_at, id) WHERE processed_at IS NULL;

CREATE INDEX triggers_user ON triggers (user_id, id);

CREATE INDEX triggers_waiting ON triggers (id) WHERE processed_at IS NOT NULL AND settled_at IS NULL;

CREATE TABLE upload_waits (
  job_id TEXT PRIMARY KEY,
  upload_ttl_ms INTEGER NOT NULL,
  expires_at INTEGER NOT NULL
) STRICT;

CREATE INDEX upload_waits_expires ON upload_waits (expires_at);

CREATE TABLE user_names (
  user_id text NOT NULL,
  sort text NOT NULL,
  name text NOT NULL,
  seen_at INTEGER NOT NULL,
  PRIMARY KEY (user_id, sort, name)
) STRICT;

CREATE INDEX user_names_seen ON user_names (seen_at);

CREATE TABLE users (
  user_id text PRIMARY KEY,
  created_at INTEGER NOT NULL
) STRICT;

CREATE TABLE webhook_deliveries (
  id TEXT PRIMARY KEY,
  webhook_id TEXT NOT NULL,
  type text NOT NULL,
  subject_id TEXT NOT NULL,
  subject_n integer NOT NULL,
  payload text NOT NULL,
  url text,
  host text,
  user_id text,
  state text NOT NULL,
  attempts integer NOT NULL,
  failures integer NOT NULL,
  next_at INTEGER,
  last_status integer,
  last_error text,
  created_at INTEGER NOT NULL,
  ended_at INTEGER,
  UNIQUE (webhook_id, subject_id, subject_n)
) STRICT;

CREATE INDEX webhook_deliveries_due ON webhook_deliveries (webhook_id, next_at, id)
WHERE next_at IS NOT NULL;

CREATE INDEX webhook_deliveries_ended ON webhook_deliveries (state, ended_at) WHERE ended_at IS NOT NULL;

CREATE INDEX webhook_deliveries_hosts ON webhook_deliveries (host, next_at, id)
WHERE host IS NOT NULL AND next_at IS NOT NULL;

CREATE INDEX webhook_deliveries_list ON webhook_deliveries (webhook_id, id);

CREATE INDEX webhook_deliveries_state ON webhook_deliveries (webhook_id, state, id);

CREATE TABLE webhook_places (
  id TEXT PRIMARY KEY,
  tx INTEGER NOT NULL,
  job_id TEXT NOT NULL,
  run_no integer NOT NULL
) STRICT;

CREATE TABLE webhooks (
  id TEXT PRIMARY KEY,
  url text NOT NULL,
  description text NOT NULL,
  events text NOT NULL,
  queue text,
  kind text,
  label_name text,
  label_value text,
  secret text NOT NULL,
  old_secret text,
  old_secret_until INTEGER,
  disabled_at INTEGER,
  disabled_reason text,
  user_id text NOT NULL,
  created_at INTEGER NOT NULL,
  updated_at INTEGER NOT NULL
) STRICT;

CREATE TABLE worker_tokens (
  token_hash text PRIMARY KEY,
  worker_id text NOT NULL,
  replaces text,
  created_at INTEGER NOT NULL,
  expires_at INTEGER NOT NULL,
  revoked_at INTEGER
) STRICT;

CREATE INDEX worker_tokens_worker ON worker_tokens (worker_id);

CREATE TABLE workers (
  worker_id text PRIMARY KEY,
  name text NOT NULL,
  queues text NOT NULL,
  meta text,
  created_at INTEGER NOT NULL,
  last_seen_at INTEGER,
  detached_at INTEGER,
  draining_since INTEGER,
  revoked_at INTEGER
) STRICT;
