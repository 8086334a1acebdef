import type { Migration } from './migration.ts'

export const workerPlane: Migration = {
  version: 2,
  name: 'worker plane',
  statements: [
    'ALTER TABLE ichido.workers ADD COLUMN meta text',

    // Workers. The token that a renewed one takes the place of, until the new one is first used.
    'ALTER TABLE ichido.worker_tokens ADD COLUMN replaces text',
    'CREATE INDEX worker_tokens_worker ON ichido.worker_tokens (worker_id)',
    // Who used it: a registration whose answer got lost is answered again, and nobody else's.
    'ALTER TABLE ichido.enroll_tokens ADD COLUMN register_hash text',

    // Dead letters and redrives. A redrive marks what belongs to it: a job that dies again meanwhile has a new, unmarked
    // dead letter, so no clock is needed to tell the two apart.
    'ALTER TABLE ichido.dead_letters ADD COLUMN redrive_id uuid',
    'CREATE INDEX dead_letters_user ON ichido.dead_letters (user_id, dead_at, job_id)',
    'CREATE INDEX dead_letters_queue ON ichido.dead_letters (queue, dead_at, job_id)',
    `CREATE INDEX dead_letters_redrive ON ichido.dead_letters (redrive_id, user_id, job_id)
      WHERE redrive_id IS NOT NULL`,
    `CREATE TABLE ichido.redrives (
      id uuid PRIMARY KEY,
      actor text NOT NULL,
      filter text NOT NULL,
      per_second integer,
      state text NOT NULL,
      version integer NOT NULL,
      marked boolean NOT NULL,
      at_dead_at bigint NOT NULL,
      at_user_id text NOT NULL,
      at_job_id uuid NOT NULL,
      matched integer NOT NULL,
      redriven integer NOT NULL,
      waiting integer NOT NULL,
      skipped integer NOT NULL,
      next_at bigint NOT NULL,
      began_at bigint NOT NULL,
      ended_at bigint
    )`,
    "CREATE INDEX redrives_running ON ichido.redrives (next_at) WHERE state = 'running'",
    // A job is replaced once, and not retried after that.
    'CREATE UNIQUE INDEX jobs_replaces ON ichido.jobs (replaces_job_id) WHERE replaces_job_id IS NOT NULL',
    // Keys that were removed although their job may still be retried: a retry takes its key back, or learns whose it is.
    `CREATE TABLE ichido.expired_keys (
      job_id uuid PRIMARY KEY,
      idempotency_key text NOT NULL,
      user_id text NOT NULL,
      operation text NOT NULL,
      request_hash text NOT NULL,
      hash_version integer NOT NULL,
      response_status integer NOT NULL,
      response_body text NOT NULL,
      created_at bigint NOT NULL
    )`,

    // Artifacts. The table of version 1 was never written to, and required a hash and a size of what is still to come.
    'DROP TABLE ichido.artifacts',
    `CREATE TABLE ichido.artifacts (
      id uuid PRIMARY KEY,
      job_id uuid,
      run_id uuid,
      user_id text NOT NULL,
      name text NOT NULL,
      sha256 text,
      size_bytes bigint,
      blob_id uuid,
      state text NOT NULL,
      created_at bigint NOT NULL,
      expires_at bigint
    )`,
    'CREATE INDEX artifacts_job ON ichido.artifacts (job_id, id)',
    'CREATE UNIQUE INDEX artifacts_input ON ichido.artifacts (job_id, name) WHERE run_id IS NULL AND job_id IS NOT NULL',
    'CREATE UNIQUE INDEX artifacts_output ON ichido.artifacts (run_id, name) WHERE run_id IS NOT NULL',
    `CREATE UNIQUE INDEX artifacts_unbound ON ichido.artifacts (user_id, name)
      WHERE job_id IS NULL AND state = 'awaited'`,
    "CREATE INDEX artifacts_content ON ichido.artifacts (user_id, sha256) WHERE state = 'ready'",
    'CREATE INDEX artifacts_blob ON ichido.artifacts (blob_id) WHERE blob_id IS NOT NULL',
    'CREATE INDEX artifacts_expires ON ichido.artifacts (expires_at) WHERE expires_at IS NOT NULL',
    `CREATE TABLE ichido.blobs (
      blob_id uuid PRIMARY KEY,
      sha256 text NOT NULL UNIQUE,
      size_bytes bigint NOT NULL,
      created_at bigint NOT NULL
    )`,
    // Runs that wait for artifacts, and until when their next chunk must come.
    `CREATE TABLE ichido.held_runs (
      run_id uuid PRIMARY KEY,
      job_id uuid NOT NULL UNIQUE,
      upload_ttl_ms bigint NOT NULL,
      expires_at bigint NOT NULL
    )`,
    'CREATE INDEX held_runs_expires ON ichido.held_runs (expires_at)',

    // Runs. The times that its worker was told when it got the lease, and keeps: what is set for the queue later must not
    // be what it is judged by.
    'ALTER TABLE ichido.runs ADD COLUMN lease_ttl_ms bigint',
    'ALTER TABLE ichido.runs ADD COLUMN continuation_ms bigint',
    // The log of a run has a limit in bytes.
    'ALTER TABLE ichido.run_logs ADD COLUMN end_bytes bigint',
  ],
}
