import { ROLES } from '../../core/limits/roles.ts'
import { statement } from '../statement.ts'

export const insertUser = statement('insert_user', {
  params: { user_id: 'text' },
  row: {},
  sql: 'INSERT INTO ichido.users (user_id, created_at) VALUES ($user_id, now_ms()) ON CONFLICT DO NOTHING',
})

const role = { oneOf: ROLES } as const
const TOKEN = 'token_id, token_hash, user_id, role, name, created_at, expires_at, revoked_at'

/** The same token again, after an uncertain commit, is no error. */
export const insertToken = statement('insert_token', {
  params: { token_id: 'text', token_hash: 'text', user_id: 'text', role, name: 'text', ttl_ms: 'integer?' },
  row: { token_id: 'text' },
  postgres: `INSERT INTO ichido.api_tokens (${TOKEN})
    VALUES ($token_id, $token_hash, $user_id, $role, $name, now_ms(),
      CASE WHEN $ttl_ms::bigint IS NULL THEN NULL ELSE now_ms() + $ttl_ms::bigint END, NULL)
    ON CONFLICT DO NOTHING RETURNING token_id`,
  sqlite: `INSERT INTO ichido.api_tokens (${TOKEN})
    VALUES ($token_id, $token_hash, $user_id, $role, $name, now_ms(),
      CASE WHEN $ttl_ms IS NULL THEN NULL ELSE now_ms() + $ttl_ms END, NULL)
    ON CONFLICT DO NOTHING RETURNING token_id`,
})

const VALID = 'revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now_ms())'

/** A token that was revoked or has expired is not found. */
export const findToken = statement('find_token', {
  params: { token_hash: 'text' },
  row: { token_id: 'text', token_hash: 'text', user_id: 'text', role, stream_key: 'text?' },
  sql: `SELECT token_id, token_hash, user_id, role, stream_key FROM ichido.api_tokens
    WHERE token_hash = $token_hash AND ${VALID}`,
})

/** Keeps the public half of the key that the token signs stream tokens with. */
export const keepStreamKey = statement('keep_stream_key', {
  params: { token_id: 'text', stream_key: 'text' },
  row: {},
  sql: 'UPDATE ichido.api_tokens SET stream_key = $stream_key WHERE token_id = $token_id AND stream_key IS NULL',
})

/** Guards that the token is valid. */
export const findStreamKey = statement('find_stream_key', {
  params: { token_id: 'text' },
  row: { stream_key: 'text', user_id: 'text', role },
  sql: `SELECT stream_key, user_id, role FROM ichido.api_tokens
    WHERE token_id = $token_id AND stream_key IS NOT NULL AND ${VALID}`,
})

/** Guards that the token was not revoked before. */
export const revokeToken = statement('revoke_token', {
  params: { token_id: 'text' },
  row: { user_id: 'text', role, name: 'text' },
  sql: `UPDATE ichido.api_tokens SET revoked_at = now_ms() WHERE token_id = $token_id AND revoked_at IS NULL
    RETURNING user_id, role, name`,
})

export const readToken = statement('read_token', {
  params: { token_id: 'text' },
  row: { token_id: 'text' },
  sql: 'SELECT token_id FROM ichido.api_tokens WHERE token_id = $token_id',
})

export const listTokens = statement('list_tokens', {
  params: {},
  row: {
    token_id: 'text',
    token_hash: 'text',
    user_id: 'text',
    role,
    name: 'text',
    created_at: 'integer',
    expires_at: 'integer?',
    revoked_at: 'integer?',
  },
  sql: `SELECT ${TOKEN} FROM ichido.api_tokens ORDER BY token_id DESC`,
})

/** The value is JSON. */
export const putSetting = statement('put_setting', {
  params: { name: 'text', value: 'text', updated_by: 'text' },
  row: {},
  sql: `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($name, $value, now_ms(), $updated_by)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at, updated_by = excluded.updated_by`,
})

/** The first value stays. */
export const claimSetting = statement('claim_setting', {
  params: { name: 'text', value: 'text', updated_by: 'text' },
  row: {},
  sql: `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($name, $value, now_ms(), $updated_by)
    ON CONFLICT (name) DO NOTHING`,
})

export const readSetting = statement('read_setting', {
  params: { name: 'text' },
  row: { value: { json: (value) => value } },
  sql: 'SELECT value FROM ichido.settings WHERE name = $name',
})

export const readSettings = statement('read_settings', {
  params: {},
  row: { name: 'text', value: { json: (value) => value } },
  sql: 'SELECT name, value FROM ichido.settings',
})

/** A restored database begins a new term, so that nothing from after the backup can still be written to it. */
export const raiseEpoch = statement('raise_epoch', {
  params: { by: 'integer' },
  row: { epoch: 'integer' },
  sql: 'UPDATE ichido.leadership SET epoch = epoch + $by, holder = NULL, expires_at = 0 WHERE id = 1 RETURNING epoch',
})
