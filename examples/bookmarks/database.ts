import { DatabaseSync } from 'node:sqlite'

const SCHEMA = `
  CREATE TABLE IF NOT EXISTS bookmarks (
    n INTEGER PRIMARY KEY AUTOINCREMENT,
    id TEXT NOT NULL UNIQUE,
    user_id TEXT NOT NULL,
    url TEXT NOT NULL,
    normal_url TEXT NOT NULL,
    source_hint TEXT,
    created_from TEXT NOT NULL,
    idempotency_key TEXT NOT NULL,
    created_at INTEGER NOT NULL,
    -- Rises with every change: a reader keeps the higher one, in whatever order they reach it.
    version INTEGER NOT NULL DEFAULT 1,
    -- How often it was given to processing. With the id it names the job.
    round INTEGER NOT NULL DEFAULT 1,
    -- Of this round; NULL until it was submitted.
    job_id TEXT,
    llm_status TEXT NOT NULL CHECK (llm_status IN ('processing', 'retrying', 'done', 'failed')),
    step TEXT,
    retry_at INTEGER,
    title TEXT,
    summary TEXT,
    error_code TEXT,
    error_message TEXT,
    UNIQUE (user_id, normal_url)
  ) STRICT;
  CREATE INDEX IF NOT EXISTS bookmarks_open ON bookmarks (job_id) WHERE llm_status IN ('processing', 'retrying');

  CREATE TABLE IF NOT EXISTS failed_jobs (
    -- Of the job in Ichido.
    id TEXT PRIMARY KEY,
    bookmark_id TEXT NOT NULL REFERENCES bookmarks (id),
    job_type TEXT NOT NULL,
    error_message TEXT,
    payload TEXT NOT NULL,
    failed_at INTEGER NOT NULL,
    retryable INTEGER NOT NULL DEFAULT 1
  ) STRICT;
  CREATE INDEX IF NOT EXISTS failed_jobs_bookmark ON failed_jobs (bookmark_id);
`

/** Opens the application's own database. Ichido's store is a second database beside it. */
export function openDatabase(file: string): DatabaseSync {
  const database = new DatabaseSync(file)
  // With FULL, an acknowledged bookmark is on the disk.
  database.exec('PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON')
  database.exec(SCHEMA)
  return database
}
