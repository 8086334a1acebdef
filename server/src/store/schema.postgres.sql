-- What the migrations make on PostgreSQL. Made by: ICHIDO_UPDATE_SCHEMA=1 npm test server/src/store/schema.test.ts

CREATE TABLE ichido.alerts (
  id uuid NOT NULL,
  rule text NOT NULL,
  subject text NOT NULL,
  message text NOT NULL,
  opened_at bigint NOT NULL,
  closed_at bigint,
  CONSTRAINT alerts_pkey PRIMARY KEY (id)
);
CREATE INDEX alerts_closed ON ichido.alerts USING btree (closed_at) WHERE (closed_at IS NOT NULL);
CREATE UNIQUE INDEX alerts_open ON ichido.alerts USING btree (rule, subject) WHERE (closed_at IS NULL);

CREATE TABLE ichido.api_tokens (
  token_id uuid NOT NULL,
  token_hash text NOT NULL,
  user_id text NOT NULL,
  role text NOT NULL,
  name text NOT NULL,
  stream_key text,
  created_at bigint NOT NULL,
  expires_at bigint,
  revoked_at bigint,
  CONSTRAINT api_tokens_pkey PRIMARY KEY (token_id),
  CONSTRAINT api_tokens_token_hash_key UNIQUE (token_hash)
);

CREATE TABLE ichido.artifacts (
  id uuid NOT NULL,
  job_id uuid,
  run_id uuid,
  user_id text NOT NULL,
  name text NOT NULL,
  sha256 text,
  size_bytes bigint,
  blob_id uuid,
  state text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint,
  CONSTRAINT artifacts_pkey PRIMARY KEY (id)
);
CREATE INDEX artifacts_blob ON ichido.artifacts USING btree (blob_id) WHERE (blob_id IS NOT NULL);
CREATE INDEX artifacts_content ON ichido.artifacts USING btree (user_id, sha256) WHERE (state = 'ready'::text);
CREATE INDEX artifacts_expires ON ichido.artifacts USING btree (expires_at) WHERE (expires_at IS NOT NULL);
CREATE UNIQUE INDEX artifacts_input ON ichido.artifacts USING btree (job_id, name) WHERE ((run_id IS NULL) AND (job_id IS NOT NULL));
CREATE INDEX artifacts_job ON ichido.artifacts USING btree (job_id, id);
CREATE UNIQUE INDEX artifacts_output ON ichido.artifacts USING btree (run_id, name) WHERE (run_id IS NOT NULL);
CREATE UNIQUE INDEX artifacts_unbound ON ichido.artifacts USING btree (user_id, name) WHERE ((job_id IS NULL) AND (state = 'awaited'::text));

CREATE TABLE ichido.audit (
  id uuid NOT NULL,
  actor text NOT NULL,
  action text NOT NULL,
  subject text NOT NULL,
  before text,
  after text,
  created_at bigint NOT NULL,
  CONSTRAINT audit_pkey PRIMARY KEY (id)
);
CREATE INDEX audit_action ON ichido.audit USING btree (action, created_at, id);
CREATE INDEX audit_actor ON ichido.audit USING btree (actor, created_at, id);
CREATE INDEX audit_created ON ichido.audit USING btree (created_at, id);
CREATE INDEX audit_subject ON ichido.audit USING btree (subject, created_at, id);

CREATE TABLE ichido.backfills (
  id uuid NOT NULL,
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
  ended_at bigint,
  CONSTRAINT backfills_pkey PRIMARY KEY (id)
);
CREATE INDEX backfills_definition ON ichido.backfills USING btree (definition_id, id);
CREATE INDEX backfills_running ON ichido.backfills USING btree (id) WHERE (state = 'running'::text);

CREATE TABLE ichido.blobs (
  blob_id uuid NOT NULL,
  sha256 text NOT NULL,
  size_bytes bigint NOT NULL,
  created_at bigint NOT NULL,
  CONSTRAINT blobs_pkey PRIMARY KEY (blob_id),
  CONSTRAINT blobs_sha256_key UNIQUE (sha256)
);

CREATE TABLE ichido.callback_secrets (
  user_id text NOT NULL,
  secret text NOT NULL,
  old_secret text,
  old_secret_until bigint,
  CONSTRAINT callback_secrets_pkey PRIMARY KEY (user_id)
);

CREATE TABLE ichido.callbacks (
  job_id uuid NOT NULL,
  url text NOT NULL,
  CONSTRAINT callbacks_pkey PRIMARY KEY (job_id)
);

CREATE TABLE ichido.cost_counters (
  user_id text NOT NULL,
  period text NOT NULL,
  period_start bigint NOT NULL,
  spent_micros bigint NOT NULL,
  CONSTRAINT cost_counters_pkey PRIMARY KEY (user_id, period, period_start)
) WITH (fillfactor=50);

CREATE TABLE ichido.dead_letters (
  job_id uuid NOT NULL,
  run_id uuid NOT NULL,
  queue text NOT NULL,
  kind text NOT NULL,
  user_id text NOT NULL,
  error_code text NOT NULL,
  error_message text NOT NULL,
  retry_count integer NOT NULL,
  redrive_id uuid,
  dead_at bigint NOT NULL,
  CONSTRAINT dead_letters_pkey PRIMARY KEY (job_id)
);
CREATE INDEX dead_letters_queue ON ichido.dead_letters USING btree (queue, dead_at, job_id);
CREATE INDEX dead_letters_redrive ON ichido.dead_letters USING btree (redrive_id, user_id, job_id) WHERE (redrive_id IS NOT NULL);
CREATE INDEX dead_letters_time ON ichido.dead_letters USING btree (dead_at, job_id);
CREATE INDEX dead_letters_user ON ichido.dead_letters USING btree (user_id, dead_at, job_id);

CREATE TABLE ichido.ended (
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
  leased_n integer,
  leased_tx bigint,
  ended_n integer,
  ended_tx bigint,
  CONSTRAINT ended_pkey PRIMARY KEY (job_id, run_no)
);
CREATE INDEX ended_ended_tx ON ichido.ended USING btree (ended_tx) WHERE (ended_tx IS NOT NULL);
CREATE INDEX ended_leased_tx ON ichido.ended USING btree (leased_tx) WHERE (leased_tx IS NOT NULL);
CREATE INDEX ended_unsuccessful ON ichido.ended USING btree (state, job_id) WHERE (latest AND (state <> 'SUCCEEDED'::text));
CREATE INDEX ended_user ON ichido.ended USING btree (user_id, state, job_id) WHERE (latest AND (state <> 'SUCCEEDED'::text));

CREATE TABLE ichido.enroll_tokens (
  token_hash text NOT NULL,
  label text,
  queues text,
  created_by text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  used_at bigint,
  worker_id text,
  register_hash text,
  CONSTRAINT enroll_tokens_pkey PRIMARY KEY (token_hash)
);

CREATE TABLE ichido.events (
  job_id uuid NOT NULL,
  n bigint NOT NULL,
  stage text NOT NULL,
  seq bigint NOT NULL,
  domain text NOT NULL,
  data text NOT NULL,
  created_at bigint NOT NULL,
  tx bigint NOT NULL DEFAULT ((pg_current_xact_id())::text)::bigint,
  CONSTRAINT events_pkey PRIMARY KEY (job_id, n)
);
CREATE UNIQUE INDEX events_identity ON ichido.events USING btree (job_id, stage, seq) WHERE (stage <> 'run'::text);
CREATE INDEX events_tx ON ichido.events USING btree (tx, job_id, n);

CREATE TABLE ichido.expired_keys (
  job_id uuid NOT NULL,
  idempotency_key text NOT NULL,
  user_id text NOT NULL,
  operation text NOT NULL,
  request_hash text NOT NULL,
  hash_version integer NOT NULL,
  response_status integer NOT NULL,
  response_body text NOT NULL,
  created_at bigint NOT NULL,
  CONSTRAINT expired_keys_pkey PRIMARY KEY (job_id)
);

CREATE TABLE ichido.held (
  job_id uuid NOT NULL,
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
  n bigint NOT NULL,
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
  error text,
  leased_n integer,
  leased_tx bigint,
  CONSTRAINT held_pkey PRIMARY KEY (job_id)
) WITH (fillfactor=45, autovacuum_vacuum_scale_factor=0.02, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX held_definition ON ichido.held USING btree (definition_id) WHERE (definition_id IS NOT NULL);
CREATE INDEX held_leased_tx ON ichido.held USING btree (leased_tx) WHERE (leased_tx IS NOT NULL);
CREATE INDEX held_poll ON ichido.held USING btree (worker_id, poll_id);
CREATE INDEX held_user ON ichido.held USING btree (user_id);

CREATE TABLE ichido.hooks (
  id uuid NOT NULL,
  name text NOT NULL,
  scheme text NOT NULL,
  topic text NOT NULL,
  secret text NOT NULL,
  user_id text NOT NULL,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  CONSTRAINT hooks_name_key UNIQUE (name),
  CONSTRAINT hooks_pkey PRIMARY KEY (id)
);

CREATE TABLE ichido.idempotency_keys (
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
  CONSTRAINT idempotency_keys_pkey PRIMARY KEY (idempotency_key, user_id, operation)
);
CREATE INDEX idempotency_keys_expires ON ichido.idempotency_keys USING btree (expires_at);
CREATE UNIQUE INDEX idempotency_keys_job ON ichido.idempotency_keys USING btree (job_id);

CREATE TABLE ichido.job_definitions (
  id uuid NOT NULL,
  name text NOT NULL,
  user_id text NOT NULL DEFAULT 'local'::text,
  kind text,
  queue text,
  payload text NOT NULL,
  policy text NOT NULL,
  priority integer NOT NULL DEFAULT 0,
  labels text,
  domain text,
  stages text,
  seq_scope text NOT NULL DEFAULT 'attempt'::text,
  schedule text,
  topic text,
  on_trigger text,
  version integer NOT NULL DEFAULT 1,
  paused_at bigint,
  last_tick_at bigint,
  next_tick_at bigint,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  CONSTRAINT job_definitions_name_key UNIQUE (name),
  CONSTRAINT job_definitions_pkey PRIMARY KEY (id)
);
CREATE INDEX job_definitions_due ON ichido.job_definitions USING btree (next_tick_at) WHERE ((next_tick_at IS NOT NULL) AND (paused_at IS NULL));
CREATE INDEX job_definitions_topic ON ichido.job_definitions USING btree (topic) WHERE (topic IS NOT NULL);

CREATE TABLE ichido.job_labels (
  name text NOT NULL,
  value text NOT NULL,
  job_id uuid NOT NULL,
  CONSTRAINT job_labels_pkey PRIMARY KEY (name, value, job_id)
);
CREATE INDEX job_labels_job ON ichido.job_labels USING btree (job_id);

CREATE TABLE ichido.job_reservations (
  reservation_id uuid NOT NULL,
  user_id text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  consumed_at bigint,
  released_at bigint,
  job_id uuid,
  CONSTRAINT job_reservations_pkey PRIMARY KEY (reservation_id)
);
CREATE INDEX job_reservations_open ON ichido.job_reservations USING btree (user_id, expires_at) WHERE ((consumed_at IS NULL) AND (released_at IS NULL));
CREATE INDEX job_reservations_user ON ichido.job_reservations USING btree (user_id, reservation_id);

CREATE TABLE ichido.jobs (
  id uuid NOT NULL,
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
  created_at bigint NOT NULL,
  CONSTRAINT jobs_pkey PRIMARY KEY (id)
);
CREATE INDEX jobs_kind ON ichido.jobs USING btree (kind, id);
CREATE INDEX jobs_queue ON ichido.jobs USING btree (queue, id);
CREATE UNIQUE INDEX jobs_replaces ON ichido.jobs USING btree (replaces_job_id) WHERE (replaces_job_id IS NOT NULL);
CREATE UNIQUE INDEX jobs_tick ON ichido.jobs USING btree (definition_id, scheduled_for) WHERE (definition_id IS NOT NULL);
CREATE INDEX jobs_user ON ichido.jobs USING btree (user_id, id);

CREATE TABLE ichido.leadership (
  id integer NOT NULL,
  holder text,
  epoch bigint NOT NULL,
  expires_at bigint NOT NULL,
  CONSTRAINT leadership_pkey PRIMARY KEY (id)
);

CREATE TABLE ichido.minute_counts (
  minute bigint NOT NULL,
  name text NOT NULL,
  counted_by text NOT NULL,
  batch_n bigint NOT NULL,
  count bigint NOT NULL,
  CONSTRAINT minute_counts_pkey PRIMARY KEY (minute, name, counted_by)
);

CREATE TABLE ichido.occurrences (
  definition_id uuid NOT NULL,
  scheduled_for bigint NOT NULL,
  origin text NOT NULL DEFAULT 'schedule'::text,
  outcome text NOT NULL,
  reason text,
  job_id uuid,
  run_at bigint,
  skipped_until bigint,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL DEFAULT 0,
  CONSTRAINT occurrences_pkey PRIMARY KEY (definition_id, scheduled_for)
);
CREATE INDEX occurrences_skipped ON ichido.occurrences USING btree (definition_id, scheduled_for) WHERE (skipped_until IS NOT NULL);
CREATE INDEX occurrences_waiting ON ichido.occurrences USING btree (definition_id, scheduled_for) WHERE (outcome = ANY (ARRAY['waiting_quota'::text, 'waiting_overlap'::text]));

CREATE TABLE ichido.once_counters (
  job_id uuid NOT NULL,
  node_id uuid NOT NULL,
  batch_n bigint NOT NULL,
  duplicates_refused bigint NOT NULL,
  replays_served bigint NOT NULL,
  stale_writes_fenced bigint NOT NULL,
  CONSTRAINT once_counters_pkey PRIMARY KEY (job_id, node_id)
);

CREATE TABLE ichido.operations (
  id uuid NOT NULL,
  action text NOT NULL,
  actor text NOT NULL,
  job_filter text,
  dead_filter text,
  job_ids text,
  per_second integer,
  state text NOT NULL,
  version integer NOT NULL,
  prepared boolean NOT NULL,
  at_dead_at bigint NOT NULL,
  at_user_id text NOT NULL,
  at_job_id uuid NOT NULL,
  matched integer NOT NULL,
  done integer NOT NULL,
  waiting integer NOT NULL,
  skipped integer NOT NULL,
  refused integer NOT NULL,
  next_at bigint NOT NULL,
  began_at bigint NOT NULL,
  ended_at bigint,
  CONSTRAINT operations_pkey PRIMARY KEY (id)
);
CREATE INDEX operations_running ON ichido.operations USING btree (next_at) WHERE (state = 'running'::text);

CREATE TABLE ichido.queue_series (
  queue text NOT NULL,
  at bigint NOT NULL,
  span integer NOT NULL,
  counted_by text NOT NULL,
  batch_n bigint NOT NULL,
  activity bigint NOT NULL,
  figures text NOT NULL,
  CONSTRAINT queue_series_pkey PRIMARY KEY (queue, at, span, counted_by)
) WITH (fillfactor=50);
CREATE INDEX queue_series_span ON ichido.queue_series USING btree (span, at);

CREATE TABLE ichido.queue_times (
  queue text NOT NULL,
  priority integer NOT NULL,
  tag bigint NOT NULL,
  updated_at bigint NOT NULL,
  CONSTRAINT queue_times_pkey PRIMARY KEY (queue, priority)
);

CREATE TABLE ichido.queues (
  name text NOT NULL,
  paused_at bigint,
  max_concurrent integer,
  lease_ttl_seconds integer,
  continuation_seconds integer,
  result_ttl_seconds integer,
  fatal_error_codes text,
  CONSTRAINT queues_pkey PRIMARY KEY (name)
);

CREATE TABLE ichido.quotas (
  user_id text NOT NULL,
  custom boolean NOT NULL,
  max_concurrent integer,
  cost_limit_micros bigint,
  period text NOT NULL,
  max_bytes bigint,
  used_bytes bigint,
  updated_at bigint NOT NULL,
  CONSTRAINT quotas_pkey PRIMARY KEY (user_id)
) WITH (fillfactor=50);

CREATE TABLE ichido.ready (
  job_id uuid NOT NULL,
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
  n bigint NOT NULL,
  bytes integer NOT NULL,
  lease_ttl_ms bigint,
  continuation_ms bigint,
  worker_id text,
  token text,
  assigned_at bigint,
  CONSTRAINT ready_pkey PRIMARY KEY (job_id)
) WITH (autovacuum_vacuum_scale_factor=0.02, autovacuum_analyze_scale_factor=0.02);
CREATE INDEX ready_definition ON ichido.ready USING btree (definition_id) WHERE (definition_id IS NOT NULL);
CREATE INDEX ready_delayed ON ichido.ready USING btree (run_at) WHERE (fair_tag IS NULL);
CREATE INDEX ready_last_tag ON ichido.ready USING btree (user_id, queue, priority, fair_tag) WHERE (fair_tag >= 0);
CREATE INDEX ready_order ON ichido.ready USING btree (queue, kind, priority DESC, fair_tag, job_id) WHERE (fair_tag IS NOT NULL);
CREATE INDEX ready_orphaned ON ichido.ready USING btree (job_id) WHERE (worker_id IS NOT NULL);
CREATE INDEX ready_user ON ichido.ready USING btree (user_id, job_id) WHERE (version > 0);

CREATE TABLE ichido.relay_watermark (
  id integer NOT NULL,
  tx bigint NOT NULL,
  job_id uuid NOT NULL,
  n bigint NOT NULL,
  checkpoints text NOT NULL,
  CONSTRAINT relay_watermark_pkey PRIMARY KEY (id)
);

CREATE TABLE ichido.results (
  run_id uuid NOT NULL,
  job_id uuid NOT NULL,
  result text,
  summary_text text,
  freqs_csv text,
  meta text,
  cost_micros bigint,
  created_at bigint NOT NULL,
  CONSTRAINT results_pkey PRIMARY KEY (run_id)
);

CREATE TABLE ichido.run_logs (
  job_id uuid NOT NULL,
  run_id uuid NOT NULL,
  run_no integer NOT NULL,
  n integer NOT NULL,
  head boolean NOT NULL,
  stream text NOT NULL,
  chunk text,
  log_ref text,
  end_bytes bigint,
  created_at bigint NOT NULL,
  CONSTRAINT run_logs_pkey PRIMARY KEY (run_id, n)
);
CREATE INDEX run_logs_head ON ichido.run_logs USING btree (created_at, run_id) WHERE head;
CREATE INDEX run_logs_job ON ichido.run_logs USING btree (job_id, run_no, n);

CREATE TABLE ichido.schema_migrations (
  version integer NOT NULL,
  name text NOT NULL,
  applied_at bigint NOT NULL,
  CONSTRAINT schema_migrations_pkey PRIMARY KEY (version)
);

CREATE TABLE ichido.sessions (
  session_id uuid NOT NULL,
  session_hash text NOT NULL,
  token_id uuid NOT NULL,
  user_id text NOT NULL,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  CONSTRAINT sessions_pkey PRIMARY KEY (session_id),
  CONSTRAINT sessions_session_hash_key UNIQUE (session_hash)
);
CREATE INDEX sessions_expiry ON ichido.sessions USING btree (expires_at);
CREATE INDEX sessions_token ON ichido.sessions USING btree (token_id);

CREATE TABLE ichido.settings (
  name text NOT NULL,
  value text NOT NULL,
  updated_at bigint NOT NULL,
  updated_by text NOT NULL,
  CONSTRAINT settings_pkey PRIMARY KEY (name)
);

CREATE TABLE ichido.trigger_outcomes (
  definition_id uuid NOT NULL,
  trigger_id uuid NOT NULL,
  triggered_at bigint NOT NULL,
  outcome text NOT NULL,
  job_id uuid,
  reason text,
  field text,
  created_at bigint NOT NULL,
  updated_at bigint NOT NULL,
  CONSTRAINT trigger_outcomes_pkey PRIMARY KEY (definition_id, trigger_id)
);
CREATE INDEX trigger_outcomes_job ON ichido.trigger_outcomes USING btree (job_id) WHERE (job_id IS NOT NULL);
CREATE INDEX trigger_outcomes_trigger ON ichido.trigger_outcomes USING btree (trigger_id);
CREATE INDEX trigger_outcomes_waiting ON ichido.trigger_outcomes USING btree (definition_id, triggered_at, trigger_id) WHERE (outcome = ANY (ARRAY['waiting_quota'::text, 'waiting_pause'::text, 'waiting_turn'::text]));

CREATE TABLE ichido.triggers (
  id uuid NOT NULL,
  user_id text NOT NULL,
  operates boolean NOT NULL,
  topic text NOT NULL,
  dedupe_key text NOT NULL,
  data text NOT NULL,
  created_at bigint NOT NULL,
  processed_at bigint,
  settled_at bigint,
  CONSTRAINT triggers_pkey PRIMARY KEY (id),
  CONSTRAINT triggers_user_id_dedupe_key_key UNIQUE (user_id, dedupe_key)
);
CREATE INDEX triggers_settled ON ichido.triggers USING btree (settled_at) WHERE (settled_at IS NOT NULL);
CREATE INDEX triggers_topic ON ichido.triggers USING btree (topic, id);
CREATE INDEX triggers_unprocessed ON ichido.triggers USING btree (created_at, id) WHERE (processed_at IS NULL);
CREATE INDEX triggers_user ON ichido.triggers USING btree (user_id, id);
CREATE INDEX triggers_waiting ON ichido.triggers USING btree (id) WHERE ((processed_at IS NOT NULL) AND (settled_at IS NULL));

CREATE TABLE ichido.upload_waits (
  job_id uuid NOT NULL,
  upload_ttl_ms bigint NOT NULL,
  expires_at bigint NOT NULL,
  CONSTRAINT upload_waits_pkey PRIMARY KEY (job_id)
);
CREATE INDEX upload_waits_expires ON ichido.upload_waits USING btree (expires_at);

CREATE TABLE ichido.user_names (
  user_id text NOT NULL,
  sort text NOT NULL,
  name text NOT NULL,
  seen_at bigint NOT NULL,
  CONSTRAINT user_names_pkey PRIMARY KEY (user_id, sort, name)
);
CREATE INDEX user_names_seen ON ichido.user_names USING btree (seen_at);

CREATE TABLE ichido.users (
  user_id text NOT NULL,
  created_at bigint NOT NULL,
  CONSTRAINT users_pkey PRIMARY KEY (user_id)
);

CREATE TABLE ichido.webhook_deliveries (
  id uuid NOT NULL,
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
  CONSTRAINT webhook_deliveries_pkey PRIMARY KEY (id),
  CONSTRAINT webhook_deliveries_webhook_id_subject_id_subject_n_key UNIQUE (webhook_id, subject_id, subject_n)
);
CREATE INDEX webhook_deliveries_due ON ichido.webhook_deliveries USING btree (webhook_id, next_at, id) WHERE (next_at IS NOT NULL);
CREATE INDEX webhook_deliveries_ended ON ichido.webhook_deliveries USING btree (state, ended_at) WHERE (ended_at IS NOT NULL);
CREATE INDEX webhook_deliveries_hosts ON ichido.webhook_deliveries USING btree (host, next_at, id) WHERE ((host IS NOT NULL) AND (next_at IS NOT NULL));
CREATE INDEX webhook_deliveries_list ON ichido.webhook_deliveries USING btree (webhook_id, id);
CREATE INDEX webhook_deliveries_state ON ichido.webhook_deliveries USING btree (webhook_id, state, id);

CREATE TABLE ichido.webhook_places (
  id uuid NOT NULL,
  tx bigint NOT NULL,
  job_id uuid NOT NULL,
  run_no integer NOT NULL,
  CONSTRAINT webhook_places_pkey PRIMARY KEY (id)
);

CREATE TABLE ichido.webhooks (
  id uuid NOT NULL,
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
  updated_at bigint NOT NULL,
  CONSTRAINT webhooks_pkey PRIMARY KEY (id)
);

CREATE TABLE ichido.worker_tokens (
  token_hash text NOT NULL,
  worker_id text NOT NULL,
  replaces text,
  created_at bigint NOT NULL,
  expires_at bigint NOT NULL,
  revoked_at bigint,
  CONSTRAINT worker_tokens_pkey PRIMARY KEY (token_hash)
);
CREATE INDEX worker_tokens_worker ON ichido.worker_tokens USING btree (worker_id);

CREATE TABLE ichido.workers (
  worker_id text NOT NULL,
  name text NOT NULL,
  queues text NOT NULL,
  meta text,
  created_at bigint NOT NULL,
  last_seen_at bigint,
  detached_at bigint,
  draining_since bigint,
  revoked_at bigint,
  CONSTRAINT workers_pkey PRIMARY KEY (worker_id)
);
