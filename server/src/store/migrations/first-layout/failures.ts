import type { Ddl } from '../migration.ts'

/** Dead letters, and the operations that change many jobs. */
export const failures: readonly Ddl[] = [
  // A redrive marks its dead letters with redrive_id. A job that dies again in the meantime has a new, unmarked dead letter, so no
  // clock is needed to tell the two apart.
  `CREATE TABLE ichido.dead_letters (
    job_id uuid PRIMARY KEY,
    run_id uuid NOT NULL,
    queue text NOT NULL,
    kind text NOT NULL,
    user_id text NOT NULL,
    error_code text NOT NULL,
    error_message text NOT NULL,
    retry_count integer NOT NULL,
    redrive_id uuid,
    dead_at bigint NOT NULL
  )`,
  'CREATE INDEX dead_letters_time ON ichido.dead_letters (dead_at, job_id)',
  'CREATE INDEX dead_letters_user ON ichido.dead_letters (user_id, dead_at, job_id)',
  'CREATE INDEX dead_letters_queue ON ichido.dead_letters (queue, dead_at, job_id)',
  `CREATE INDEX dead_letters_redrive ON ichido.dead_letters (redrive_id, user_id, job_id)
    WHERE redrive_id IS NOT NULL`,

  // Jobs that are canceled, retried or redriven one after the other. The place is a dead letter while a redrive marks its dead
  // letters, and else a user and a job, or only a job. `prepared`: the jobs are marked or counted.
  `CREATE TABLE ichido.operations (
    id uuid PRIMARY KEY,
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
    ended_at bigint
  )`,
  "CREATE INDEX operations_running ON ichido.operations (next_at) WHERE state = 'running'",
]
