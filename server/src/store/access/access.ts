import { ROLES, type Role } from '../../core/limits/roles.ts'
import { type Command, command } from '../port.ts'
import { one, query, type RowOf, statement, type Work } from '../statement.ts'
import { putSetting, readSetting } from '../system/settings.ts'
import { type By, record } from './audit.ts'

const insertUser = statement('insert_user', {
  params: { user_id: 'text' },
  row: {},
  sql: 'INSERT INTO ichido.users (user_id, created_at) VALUES ($user_id, now_ms()) ON CONFLICT DO NOTHING',
})

const role = { oneOf: ROLES } as const

const TOKEN = 'token_id, token_hash, user_id, role, name, created_at, expires_at, revoked_at'

/** Inserting the same token again, after an uncertain commit, is not an error. */
const insertToken = statement('insert_token', {
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

/** For a row of `api_tokens`. */
export const VALID = 'revoked_at IS NULL AND (expires_at IS NULL OR expires_at > now_ms())'

/** A token that was revoked or has expired is not found. */
const selectToken = statement('find_token', {
  params: { token_hash: 'text' },
  row: { token_id: 'text', token_hash: 'text', user_id: 'text', role, stream_key: 'text?' },
  sql: `SELECT token_id, token_hash, user_id, role, stream_key FROM ichido.api_tokens
    WHERE token_hash = $token_hash AND ${VALID}`,
})

/** Stores the public half of the key that the token signs stream tokens with. */
const setStreamKey = statement('keep_stream_key', {
  params: { token_id: 'text', stream_key: 'text' },
  row: {},
  sql: 'UPDATE ichido.api_tokens SET stream_key = $stream_key WHERE token_id = $token_id AND stream_key IS NULL',
})

/** Guards that the token is valid. */
const selectStreamKey = statement('find_stream_key', {
  params: { token_id: 'text' },
  row: { stream_key: 'text', user_id: 'text', role },
  sql: `SELECT stream_key, user_id, role FROM ichido.api_tokens
    WHERE token_id = $token_id AND stream_key IS NOT NULL AND ${VALID}`,
})

/** Guards that the token was not revoked before. */
const endToken = statement('revoke_token', {
  params: { token_id: 'text' },
  row: { user_id: 'text', role, name: 'text' },
  sql: `UPDATE ichido.api_tokens SET revoked_at = now_ms() WHERE token_id = $token_id AND revoked_at IS NULL
    RETURNING user_id, role, name`,
})

const readToken = statement('read_token', {
  params: { token_id: 'text' },
  row: { token_id: 'text' },
  sql: 'SELECT token_id FROM ichido.api_tokens WHERE token_id = $token_id',
})

const selectTokens = statement('list_tokens', {
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

export interface Token {
  tokenId: string
  tokenHash: string
  userId: string
  role: Role
  name: string
  createdAtMs: number
  expiresAtMs: number | null
  revokedAtMs: number | null
}

/** This setting stays for ever once a token was created: deleting the last token must not reopen the server. */
const AUTH_REQUIRED = 'auth_required'

export interface NewToken {
  tokenId: string
  tokenHash: string
  userId: string
  role: Role
  name: string
  ttlMs: number | null
}

/** @param by who asked for it; null: the change is not recorded. */
export function createToken(token: NewToken, by: By | null = null): Command<void> {
  return command('create_token', function* work(): Work<void> {
    const { tokenId, tokenHash, userId, role, name, ttlMs } = token
    yield* query(insertUser, { user_id: userId })
    const made = yield* query(insertToken, {
      token_id: tokenId,
      token_hash: tokenHash,
      user_id: userId,
      role,
      name,
      ttl_ms: ttlMs,
    })
    yield* query(putSetting, { name: AUTH_REQUIRED, value: 'true', updated_by: userId })
    if (by === null || made.length === 0) return
    const ttlSeconds = ttlMs === null ? null : ttlMs / 1000
    yield* record(by, 'token.create', tokenId, null, { user_id: userId, role, name, ttl_seconds: ttlSeconds })
  })
}

interface FoundToken extends Pick<Token, 'tokenId' | 'tokenHash' | 'userId' | 'role'> {
  /** Null until it first asks for a stream token. */
  streamKey: string | null
}

export function findToken(tokenHash: string): Command<FoundToken | null> {
  return command('find_token', function* work() {
    const row = yield* one(selectToken, { token_hash: tokenHash })
    if (row === undefined) return null
    return {
      tokenId: row.token_id,
      tokenHash: row.token_hash,
      userId: row.user_id,
      role: row.role,
      streamKey: row.stream_key,
    }
  })
}

/** A token always has the same key, so the order of writers does not matter. */
export function keepStreamKey(tokenId: string, streamKey: string): Command<void> {
  return command('keep_stream_key', function* work(): Work<void> {
    yield* query(setStreamKey, { token_id: tokenId, stream_key: streamKey })
  })
}

/** Null also for a token that never asked for a stream token. */
export function findStreamKey(tokenId: string): Command<{ streamKey: string; userId: string; role: Role } | null> {
  return command('find_stream_key', function* work() {
    const row = yield* one(selectStreamKey, { token_id: tokenId })
    if (row === undefined) return null
    return { streamKey: row.stream_key, userId: row.user_id, role: row.role }
  })
}

/** False when there is no such token. */
export function revokeToken(tokenId: string, by: By | null = null): Command<boolean> {
  return command('revoke_token', function* work(): Work<boolean> {
    const revoked = yield* one(endToken, { token_id: tokenId })
    if (revoked === undefined) return (yield* one(readToken, { token_id: tokenId })) !== undefined
    const { user_id, role, name } = revoked
    if (by !== null) yield* record(by, 'token.revoke', tokenId, { user_id, role, name }, null)
    return true
  })
}

export function listTokens(): Command<Token[]> {
  return command('list_tokens', function* work(): Work<Token[]> {
    return (yield* query(selectTokens, {})).map(toToken)
  })
}

export function readAuthRequired(): Command<boolean> {
  return command('read_auth_required', function* work(): Work<boolean> {
    const setting = yield* one(readSetting, { name: AUTH_REQUIRED })
    return setting?.value === true
  })
}

function toToken(row: RowOf<typeof selectTokens>): Token {
  return {
    tokenId: row.token_id,
    tokenHash: row.token_hash,
    userId: row.user_id,
    role: row.role,
    name: row.name,
    createdAtMs: row.created_at,
    expiresAtMs: row.expires_at,
    revokedAtMs: row.revoked_at,
  }
}

/** Tokens of a day or less are meant to end. */
const WATCHED_MIN_MS = 24 * 3_600_000

/**
 * The token ends within `within_ms`, and less than a quarter of its life is left: workers renew their tokens, which
 * live for 7 days, after half of it. Tokens that have ended are not included.
 */
const ENDING = `t.revoked_at IS NULL AND t.expires_at > (SELECT now_ms()) AND t.expires_at < (SELECT now_ms()) + CAST($within_ms AS bigint)
  AND t.expires_at - t.created_at > ${WATCHED_MIN_MS} AND 4 * (t.expires_at - (SELECT now_ms())) < t.expires_at - t.created_at`

/** The tokens that end first. */
const readEndingTokens = statement('read_ending_tokens', {
  params: { within_ms: 'integer', max: 'integer' },
  row: { id: 'text', name: 'text', owner: 'text', expires_at: 'integer' },
  sql: `SELECT t.token_id AS id, t.name, t.user_id AS owner, t.expires_at FROM ichido.api_tokens t WHERE ${ENDING}
    ORDER BY t.expires_at LIMIT $max`,
})

/** The same for workers that were seen within a day, have not stopped, and have no newer token. */
const readEndingWorkerTokens = statement('read_ending_worker_tokens', {
  params: { within_ms: 'integer', max: 'integer' },
  row: { id: 'text', name: 'text', expires_at: 'integer' },
  sql: `SELECT w.worker_id AS id, w.name, t.expires_at FROM ichido.workers w JOIN ichido.worker_tokens t ON t.worker_id = w.worker_id
    WHERE w.revoked_at IS NULL AND w.detached_at IS NULL AND w.last_seen_at > (SELECT now_ms()) - 86400000 AND ${ENDING}
      AND NOT EXISTS (SELECT 1 FROM ichido.worker_tokens n
        WHERE n.worker_id = w.worker_id AND n.expires_at > t.expires_at AND n.revoked_at IS NULL)
    ORDER BY t.expires_at LIMIT $max`,
})

/** A token that ends soon and was not replaced. `id` names the API token or the worker. */
type EndingToken = { id: string; name: string; endsAtMs: number } & ({ of: 'user'; owner: string } | { of: 'worker' })

/** Finds at most `max` tokens of users and `max` of workers, those that end first. */
export function findEndingTokens(withinMs: number, max: number): Command<EndingToken[]> {
  return command('find_ending_tokens', function* work(): Work<EndingToken[]> {
    const limits = { within_ms: withinMs, max }
    const ofUsers = yield* query(readEndingTokens, limits)
    const ofWorkers = yield* query(readEndingWorkerTokens, limits)
    return [
      ...ofUsers.map(({ id, name, owner, expires_at }) => ({
        of: 'user' as const,
        owner,
        id,
        name,
        endsAtMs: expires_at,
      })),
      ...ofWorkers.map(({ id, name, expires_at }) => ({ of: 'worker' as const, id, name, endsAtMs: expires_at })),
    ]
  })
}
