import { statement } from '../statement.ts'

export const insertUser = statement(
  'insert_user',
  'INSERT INTO ichido.users (user_id, created_at) VALUES ($1, now_ms()) ON CONFLICT DO NOTHING',
)

const TOKEN = 'token_id, token_hash, user_id, role, name, created_at, expires_at, revoked_at'

/** Takes token id, hash, user, role, name, life in ms (or null). The same again, after an uncertain commit, is no error. */
export const insertToken = statement('insert_token', {
  postgres: `INSERT INTO ichido.api_tokens (${TOKEN})
    VALUES ($1, $2, $3, $4, $5, now_ms(), CASE WHEN $6::bigint IS NULL THEN NULL ELSE now_ms() + $6::bigint END, NULL)
    ON CONFLICT DO NOTHING RETURNING token_id`,
  sqlite: `INSERT INTO ichido.api_tokens (${TOKEN})
    VALUES ($1, $2, $3, $4, $5, now_ms(), CASE WHEN $6 IS NULL THEN NULL ELSE now_ms() + $6 END, NULL)
    ON CONFLICT DO NOTHING RETURNING token_id`,
})

const VALID = 'revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now_ms())'

/** Takes a hash; a token that was revoked or whose time is up is none. */
export const findToken = statement(
  'find_token',
  `SELECT token_id, token_hash, user_id, role, stream_key FROM ichido.api_tokens WHERE token_hash = $1 AND ${VALID}`,
)

/** Takes a token's id and the public half of the key that it signs stream tokens with. */
export const keepStreamKey = statement(
  'keep_stream_key',
  'UPDATE ichido.api_tokens SET stream_key = $2 WHERE token_id = $1 AND stream_key IS NULL',
)

/** Takes a token's id. Guards: the token is valid. */
export const findStreamKey = statement(
  'find_stream_key',
  `SELECT stream_key, user_id, role FROM ichido.api_tokens WHERE token_id = $1 AND stream_key IS NOT NULL AND ${VALID}`,
)

/** Takes an id. Guards: it was not revoked before. */
export const revokeToken = statement(
  'revoke_token',
  `UPDATE ichido.api_tokens SET revoked_at = now_ms() WHERE token_id = $1 AND revoked_at IS NULL
    RETURNING user_id, role, name`,
)

export const readToken = statement('read_token', 'SELECT token_id FROM ichido.api_tokens WHERE token_id = $1')

export const listTokens = statement('list_tokens', `SELECT ${TOKEN} FROM ichido.api_tokens ORDER BY token_id DESC`)

/** Takes name, value (JSON), who. */
export const putSetting = statement(
  'put_setting',
  `INSERT INTO ichido.settings (name, value, updated_at, updated_by) VALUES ($1, $2, now_ms(), $3)
    ON CONFLICT (name) DO UPDATE SET value = excluded.value, updated_at = excluded.updated_at, updated_by = excluded.updated_by`,
)

export const readSetting = statement('read_setting', 'SELECT value FROM ichido.settings WHERE name = $1')

export const readSettings = statement('read_settings', 'SELECT name, value FROM ichido.settings')

/** A restored database starts a new term, so that nothing of the time after the backup can still be written to it. */
export const raiseEpoch = statement(
  'raise_epoch',
  'UPDATE ichido.leadership SET epoch = epoch + $1, holder = NULL, expires_at = 0 WHERE id = 1 RETURNING epoch',
)
