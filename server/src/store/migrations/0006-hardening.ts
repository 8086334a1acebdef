import type { Migration } from './migration.ts'

/** One migration for the whole release: a node accepts a schema one version ahead of it, and no further. */
export const hardening: Migration = {
  version: 6,
  name: 'hardening',
  statements: [
    // The public half of a key that only the API token itself gives; null until it first asks for a stream token.
    'ALTER TABLE ichido.api_tokens ADD COLUMN stream_key text',
    // Whoever read it could sign stream tokens for any job.
    "DELETE FROM ichido.settings WHERE name = 'stream_token_secret'",
  ],
}
