import { ROLES, type Role } from '../../core/limits/roles.ts'
import { type Command, command } from '../port.ts'
import { exactlyOne, one, query, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import { VALID } from './access.ts'
import { record } from './audit.ts'

const OF_VALID_TOKEN = `SELECT token_id, user_id, role, expires_at FROM ichido.api_tokens
  WHERE token_hash = $token_hash AND ${VALID}`

/**
 * Locks the token, so that its sessions are made one after the other. A sign-in that has waited for a revocation finds
 * no token.
 */
const lockToken = statement('lock_token', {
  params: { token_hash: 'text' },
  row: { token_id: 'text', user_id: 'text', role: { oneOf: ROLES }, expires_at: 'integer?' },
  postgres: `${OF_VALID_TOKEN} FOR NO KEY UPDATE`,
  sqlite: OF_VALID_TOKEN,
})

/** No session outlives its token. After an uncertain commit, the same session is there already. */
const insertSession = statement('insert_session', {
  params: {
    session_id: 'text',
    session_hash: 'text',
    token_id: 'text',
    user_id: 'text',
    ttl_ms: 'integer',
    token_expires_at: 'integer?',
  },
  row: { expires_at: 'integer' },
  sql: `INSERT INTO ichido.sessions (session_id, session_hash, token_id, user_id, created_at, expires_at)
    VALUES ($session_id, $session_hash, $token_id, $user_id, now_ms(),
      CASE WHEN CAST($token_expires_at AS bigint) < now_ms() + CAST($ttl_ms AS bigint)
        THEN CAST($token_expires_at AS bigint) ELSE now_ms() + CAST($ttl_ms AS bigint) END)
    ON CONFLICT (session_id) DO UPDATE SET session_id = excluded.session_id RETURNING expires_at`,
})

const older = (limit: string) => `DELETE FROM ichido.sessions WHERE session_id IN (
    SELECT session_id FROM ichido.sessions WHERE token_id = $token_id AND session_id <> $session_id
    ORDER BY created_at DESC, session_id DESC ${limit} OFFSET $others_max)`

/** The token is locked. Removes its oldest sessions beyond the maximum, but never the new one. */
const deleteOldest = statement('remove_oldest_sessions', {
  params: { token_id: 'text', session_id: 'text', others_max: 'integer' },
  row: {},
  postgres: older(''),
  sqlite: older('LIMIT -1'),
})

/** A session counts only while its token does, and has the current rights of the token. */
const selectSession = statement('find_session', {
  params: { session_hash: 'text' },
  row: {
    session_hash: 'text',
    token_id: 'text',
    user_id: 'text',
    role: { oneOf: ROLES },
    expires_at: 'integer',
  },
  sql: `SELECT s.session_hash, s.expires_at, t.token_id, t.user_id, t.role
    FROM ichido.sessions s
    JOIN (SELECT token_id, user_id, role FROM ichido.api_tokens WHERE ${VALID}) t ON t.token_id = s.token_id
    WHERE s.session_hash = $session_hash AND s.expires_at > now_ms()`,
})

const deleteSession = statement('delete_session', {
  params: { session_hash: 'text' },
  row: { session_id: 'text', token_id: 'text', user_id: 'text' },
  sql: 'DELETE FROM ichido.sessions WHERE session_hash = $session_hash RETURNING session_id, token_id, user_id',
})

const deleteExpired = statement('remove_sessions', {
  params: { ...TERM, max: 'integer' },
  row: { session_id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT s.session_id FROM l CROSS JOIN ichido.sessions s WHERE s.expires_at <= (SELECT now_ms())
      ORDER BY s.expires_at LIMIT $max FOR UPDATE OF s SKIP LOCKED)
    DELETE FROM ichido.sessions WHERE session_id IN (SELECT session_id FROM c) RETURNING session_id`,
  sqlite: `DELETE FROM ichido.sessions WHERE ${LED_SQLITE} AND session_id IN (
      SELECT session_id FROM ichido.sessions WHERE expires_at <= now_ms() ORDER BY expires_at LIMIT $max)
    RETURNING session_id`,
})

export interface NewSession {
  sessionId: string
  sessionHash: string
  /** The token that signs in. */
  tokenHash: string
  ttlMs: number
  /** The sessions that a token may have, with this one. */
  perTokenMax: number
  auditId: string
}

export interface FoundSession {
  tokenId: string
  userId: string
  role: Role
  expiresAtMs: number
}

/** Null if the token is unknown, expired or revoked. */
export function createSession(session: NewSession): Command<FoundSession | null> {
  return command('create_session', function* work(): Work<FoundSession | null> {
    const { sessionId, sessionHash, tokenHash, ttlMs, perTokenMax, auditId } = session
    const token = yield* one(lockToken, { token_hash: tokenHash })
    if (token === undefined) return null
    const { token_id, user_id, role } = token
    const { expires_at } = yield* exactlyOne(insertSession, {
      session_id: sessionId,
      session_hash: sessionHash,
      token_id,
      user_id,
      ttl_ms: ttlMs,
      token_expires_at: token.expires_at,
    })
    yield* query(deleteOldest, { token_id, session_id: sessionId, others_max: perTokenMax - 1 })
    yield* record({ id: auditId, actor: user_id }, 'session.create', sessionId, null, { user_id, token_id })
    return { tokenId: token_id, userId: user_id, role, expiresAtMs: expires_at }
  })
}

/** A session that was ended or has expired, or whose token was revoked or has expired, is not found. */
export function findSession(sessionHash: string): Command<(FoundSession & { sessionHash: string }) | null> {
  return command('find_session', function* work() {
    const row = yield* one(selectSession, { session_hash: sessionHash })
    if (row === undefined) return null
    return {
      sessionHash: row.session_hash,
      tokenId: row.token_id,
      userId: row.user_id,
      role: row.role,
      expiresAtMs: row.expires_at,
    }
  })
}

/** Ends a session. Nothing happens if there is none. */
export function endSession(sessionHash: string, auditId: string): Command<void> {
  return command('delete_session', function* work(): Work<void> {
    const ended = yield* one(deleteSession, { session_hash: sessionHash })
    if (ended === undefined) return
    const { session_id, token_id, user_id } = ended
    yield* record({ id: auditId, actor: user_id }, 'session.delete', session_id, { user_id, token_id }, null)
  })
}

export function removeExpiredSessions(term: Term, max: number): Command<number> {
  return command('remove_sessions', function* work(): Work<number> {
    return (yield* query(deleteExpired, { ...term, max })).length
  })
}
