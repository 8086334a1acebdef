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
  ],
}
