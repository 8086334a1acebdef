import { createHmac } from 'node:crypto'
import type { Caller } from '../../core/limits/roles.ts'
import { createSession, endSession, type FoundSession, findSession } from '../../store/access/sessions.ts'
import type { Deps } from '../deps.ts'
import { hashToken, sameHash, TrustedTokens } from './access.ts'

/** The caller of a session has the current rights of the API token that signed in. */
export interface Session {
  caller: Caller
  expiresAtMs: number
}

/**
 * Sessions of browsers. A session is a row in the store, so it works at every node. It ends with its API token, by a
 * sign-out, or after its time. The secret is only in the browser's cookie; the store keeps its hash.
 */
export interface SessionService {
  /** Null if the API token is unknown, expired or revoked. */
  create(apiToken: string): Promise<(Session & { secret: string }) | null>
  /** Null if the session is unknown or has ended. */
  authenticate(secret: string): Promise<Session | null>
  /** The session by the last answer of the store, up to an hour ago. It is used while the store does not answer. */
  lastKnown(secret: string): Session | null
  /** Ends the session. Idempotent. */
  end(secret: string): Promise<void>
  /** Asks the store again for every session. */
  forgetAll(): void
}

export const SESSION_TTL_MS = 12 * 3_600_000
/** Beyond this, the oldest session of the token ends. */
export const SESSIONS_PER_TOKEN_MAX = 20
const SECRET_BYTES = 32

export function createSessionService({ world, store }: Pick<Deps, 'world' | 'store'>): SessionService {
  const trusted = new TrustedTokens<Session>(world)

  return {
    async create(apiToken) {
      const secret = world.secret(SECRET_BYTES)
      const found = await store.write(
        createSession({
          sessionId: world.uuid(),
          sessionHash: hashToken(secret),
          tokenHash: hashToken(apiToken),
          ttlMs: SESSION_TTL_MS,
          perTokenMax: SESSIONS_PER_TOKEN_MAX,
          auditId: world.uuid(),
        }),
      )
      return found === null ? null : { ...toSession(found), secret }
    },

    async authenticate(secret) {
      const hash = hashToken(secret)
      const known = trusted.get(hash)
      if (known !== null) return known
      const found = await store.read(findSession(hash))
      if (found === null || !sameHash(found.sessionHash, hash)) {
        trusted.forget(hash)
        return null
      }
      const session = toSession(found)
      trusted.keep(hash, session)
      return session
    },

    lastKnown: (secret) => trusted.lastKnown(hashToken(secret)),

    async end(secret) {
      const hash = hashToken(secret)
      await store.write(endSession(hash, world.uuid()))
      trusted.forget(hash)
    },

    forgetAll: () => trusted.forgetAll(),
  }
}

function toSession({ tokenId, userId, role, expiresAtMs }: FoundSession): Session {
  return { caller: { tokenId, userId, role }, expiresAtMs }
}

/** Only a page that may read the answers of this server knows it. It follows from the secret, so nothing is stored. */
export function csrfTokenOf(secret: string): string {
  return createHmac('sha256', secret).update('ichido csrf token').digest('base64url')
}
