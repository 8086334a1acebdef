import type { Ddl } from '../migration.ts'

/** Users, workers and their tokens. */
export const access: readonly Ddl[] = [
  `CREATE TABLE ichido.users (
    user_id text PRIMARY KEY,
    created_at bigint NOT NULL
  )`,
  // `stream_key` is the public half of a key that only the API token itself can derive; null: the token has never asked for a
  // stream token.
  `CREATE TABLE ichido.api_tokens (
    token_id uuid PRIMARY KEY,
    token_hash text NOT NULL UNIQUE,
    user_id text NOT NULL,
    role text NOT NULL,
    name text NOT NULL,
    stream_key text,
    created_at bigint NOT NULL,
    expires_at bigint,
    revoked_at bigint
  )`,
  `CREATE TABLE ichido.sessions (
    session_id uuid PRIMARY KEY,
    session_hash text NOT NULL UNIQUE,
    token_id uuid NOT NULL,
    user_id text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL
  )`,
  'CREATE INDEX sessions_token ON ichido.sessions (token_id)',
  'CREATE INDEX sessions_expiry ON ichido.sessions (expires_at)',

  `CREATE TABLE ichido.workers (
    worker_id text PRIMARY KEY,
    name text NOT NULL,
    queues text NOT NULL,
    meta text,
    created_at bigint NOT NULL,
    last_seen_at bigint,
    detached_at bigint,
    draining_since bigint,
    revoked_at bigint
  )`,
  // `replaces` is the hash of the token that a renewed token replaces, until the renewed token is first used.
  `CREATE TABLE ichido.worker_tokens (
    token_hash text PRIMARY KEY,
    worker_id text NOT NULL,
    replaces text,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    revoked_at bigint
  )`,
  'CREATE INDEX worker_tokens_worker ON ichido.worker_tokens (worker_id)',
  // `register_hash` identifies the registration that used the token: a repeat of it, after its answer got lost, is answered again.
  `CREATE TABLE ichido.enroll_tokens (
    token_hash text PRIMARY KEY,
    label text,
    queues text,
    created_by text NOT NULL,
    created_at bigint NOT NULL,
    expires_at bigint NOT NULL,
    used_at bigint,
    worker_id text,
    register_hash text
  )`,
]
