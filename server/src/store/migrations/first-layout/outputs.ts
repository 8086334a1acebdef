import type { Ddl } from '../migration.ts'

function events(key: string): string {
  return `CREATE TABLE ichido.events (
    job_id uuid NOT NULL,
    n bigint NOT NULL,
    stage text NOT NULL,
    seq bigint NOT NULL,
    domain text NOT NULL,
    data text NOT NULL,
    created_at bigint NOT NULL,
    ${key}
  )`
}

/** Events, results, logs and artifacts of jobs. */
export const outputs: readonly Ddl[] = [
  // `n` is the cursor. It has no gaps within a job, and it is raised under the lock of the run's row, so that commit order and n
  // agree.
  // Readers of all jobs go by the transaction that wrote an event (hazard 13): SQLite has the rowid for that, PostgreSQL needs `tx`.
  {
    sqlite: events('PRIMARY KEY (job_id, n)'),
    postgres: events(`tx bigint NOT NULL DEFAULT pg_current_xact_id()::text::bigint,
    PRIMARY KEY (job_id, n)`),
  },
  // The server alone writes the lifecycle (stage run) and numbers it by n, so only the events that workers publish need an index
  // for their identity.
  "CREATE UNIQUE INDEX events_identity ON ichido.events (job_id, stage, seq) WHERE stage <> 'run'",
  // A BRIN index would make every window read the whole last minute. A B-tree makes a large insert hardly slower (9.6 µs a row
  // instead of 9.0). The events of one transaction are in the order of their readers: a restore may write a million of them.
  { postgres: 'CREATE INDEX events_tx ON ichido.events (tx, job_id, n)' },

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

  // `head` marks the first chunk of a run's log: it leads to the log when the log is old enough to be archived. `end_bytes` is
  // the size of the log up to the end of this chunk: the log of a run has a limit in bytes.
  `CREATE TABLE ichido.run_logs (
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
    PRIMARY KEY (run_id, n)
  )`,
  // The log of a job is read in this order, from run to run.
  'CREATE INDEX run_logs_job ON ichido.run_logs (job_id, run_no, n)',
  'CREATE INDEX run_logs_head ON ichido.run_logs (created_at, run_id) WHERE head',

  // An artifact has no hash and no size until its upload is complete.
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

  // These jobs wait for the upload of artifacts. The next chunk must come before expires_at.
  `CREATE TABLE ichido.upload_waits (
    job_id uuid PRIMARY KEY,
    upload_ttl_ms bigint NOT NULL,
    expires_at bigint NOT NULL
  )`,
  'CREATE INDEX upload_waits_expires ON ichido.upload_waits (expires_at)',
]
