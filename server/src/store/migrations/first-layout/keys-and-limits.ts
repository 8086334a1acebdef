import type { Ddl } from '../migration.ts'

/** Free space on each page takes the next version of a row, so that an update leaves the indexes alone (HOT). */
export function oftenUpdated(table: string): Ddl {
  return { postgres: `${table} WITH (fillfactor = 50)`, sqlite: table }
}

/** Idempotency keys, reservations and quotas. */
export const keysAndLimits: readonly Ddl[] = [
  // The key is the first column: an operator looks a key up without knowing its user.
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
  // The keys of jobs that may still be retried move here when they expire: a retry takes its key back, or learns which job has it
  // now.
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

  // The row of a user is also the lock that serializes the user's submits. A row that was made only as a lock is not custom, and
  // takes its limits from the row '*'. The stored bytes of a user are counted only while max_bytes is set; used_bytes is null
  // until the first count after that.
  oftenUpdated(`CREATE TABLE ichido.quotas (
    user_id text PRIMARY KEY,
    custom boolean NOT NULL,
    max_concurrent integer,
    cost_limit_micros bigint,
    period text NOT NULL,
    max_bytes bigint,
    used_bytes bigint,
    updated_at bigint NOT NULL
  )`),
  "INSERT INTO ichido.quotas (user_id, custom, period, updated_at) VALUES ('*', true, 'month', 0)",
  oftenUpdated(`CREATE TABLE ichido.cost_counters (
    user_id text NOT NULL,
    period text NOT NULL,
    period_start bigint NOT NULL,
    spent_micros bigint NOT NULL,
    PRIMARY KEY (user_id, period, period_start)
  )`),
]
