import type { Role } from '../../core/limits/roles.ts'
import { type Command, command } from '../port.ts'
import { one, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './access.sql.ts'
import { type By, record } from './audit.ts'

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

/** Kept for ever once a token was made: deleting the last token must not open the door again. */
export const AUTH_REQUIRED = 'auth_required'

export interface NewToken {
  tokenId: string
  tokenHash: string
  userId: string
  role: Role
  name: string
  ttlMs: number | null
}

/** @param by who asked for it; null: nobody is to be told of. */
export function createToken(token: NewToken, by: By | null = null): Command<void> {
  return command('create_token', function* work(): Work<void> {
    const { tokenId, tokenHash, userId, role, name, ttlMs } = token
    yield* query(sql.insertUser, { user_id: userId })
    const made = yield* query(sql.insertToken, {
      token_id: tokenId,
      token_hash: tokenHash,
      user_id: userId,
      role,
      name,
      ttl_ms: ttlMs,
    })
    yield* query(sql.putSetting, { name: AUTH_REQUIRED, value: 'true', updated_by: userId })
    if (by === null || made.length === 0) return
    const ttlSeconds = ttlMs === null ? null : ttlMs / 1000
    yield* record(by, 'token.create', tokenId, null, { user_id: userId, role, name, ttl_seconds: ttlSeconds })
  })
}

export interface FoundToken extends Pick<Token, 'tokenId' | 'tokenHash' | 'userId' | 'role'> {
  /** Null until it first asks for a stream token. */
  streamKey: string | null
}

export function findToken(tokenHash: string): Command<FoundToken | null> {
  return command('find_token', function* work() {
    const row = yield* one(sql.findToken, { token_hash: tokenHash })
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

/** Always the same one for a token, so it does not matter who keeps it first. */
export function keepStreamKey(tokenId: string, streamKey: string): Command<void> {
  return command('keep_stream_key', function* work(): Work<void> {
    yield* query(sql.keepStreamKey, { token_id: tokenId, stream_key: streamKey })
  })
}

/** Null also for a token that never asked for a stream token. */
export function findStreamKey(tokenId: string): Command<{ streamKey: string; userId: string; role: Role } | null> {
  return command('find_stream_key', function* work() {
    const row = yield* one(sql.findStreamKey, { token_id: tokenId })
    if (row === undefined) return null
    return { streamKey: row.stream_key, userId: row.user_id, role: row.role }
  })
}

/** False when there is no such token. */
export function revokeToken(tokenId: string, by: By | null = null): Command<boolean> {
  return command('revoke_token', function* work(): Work<boolean> {
    const revoked = yield* one(sql.revokeToken, { token_id: tokenId })
    if (revoked === undefined) return (yield* one(sql.readToken, { token_id: tokenId })) !== undefined
    const { user_id, role, name } = revoked
    if (by !== null) yield* record(by, 'token.revoke', tokenId, { user_id, role, name }, null)
    return true
  })
}

export function listTokens(): Command<Token[]> {
  return command('list_tokens', function* work(): Work<Token[]> {
    return (yield* query(sql.listTokens, {})).map(toToken)
  })
}

export function readAuthRequired(): Command<boolean> {
  return command('read_auth_required', function* work(): Work<boolean> {
    const setting = yield* one(sql.readSetting, { name: AUTH_REQUIRED })
    return setting?.value === true
  })
}

export function readSettings(): Command<Map<string, unknown>> {
  return command('read_settings', function* work(): Work<Map<string, unknown>> {
    return new Map((yield* query(sql.readSettings, {})).map(({ name, value }) => [name, value]))
  })
}

export function raiseEpoch(by: number): Command<number> {
  return command('raise_epoch', function* work(): Work<number> {
    const raised = yield* one(sql.raiseEpoch, { by })
    if (raised === undefined) throw new Error('There is no row of the leadership')
    return raised.epoch
  })
}

function toToken(row: RowOf<typeof sql.listTokens>): Token {
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
