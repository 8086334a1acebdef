import { createHash, timingSafeEqual } from 'node:crypto'
import { IchidoError, type TokenShape } from '@ichido/sdk/protocol'
import { type Caller, can, type Role } from '../../core/limits/roles.ts'
import * as store from '../../store/access/access.ts'
import type { Deps } from '../deps.ts'
import { freshRead } from '../fresh-read.ts'
import { iso, isoOrNull } from '../iso.ts'
import { notFound, requireId } from '../not-found.ts'

export interface NewToken {
  userId: string
  role: Role
  name: string
  ttlSeconds: number | null
}

export interface AccessService {
  /**
   * Whether a token was ever made here; from then on, for good, everybody needs one. Until then each call asks the store, for
   * any node or command may make the first token, and open mode ends for all of them at once.
   */
  isAuthRequired(): Promise<boolean>
  /** Who a token belongs to; null when it is unknown, expired or revoked. */
  authenticate(token: string): Promise<Caller | null>
  /** What `authenticate` would say, if it was asked just now; null: ask it. */
  knownCaller(token: string): Caller | null
  /** Who a token belonged to when the store was last asked, within the hour: for when it cannot be asked. */
  lastKnownCaller(token: string): Caller | null
  /** Whether no token had been made when the store was last asked. */
  wasOpen(): boolean
  /** The secret is shown once, in this answer; only its hash is kept. */
  createToken(caller: Caller, token: NewToken): Promise<{ token: string; token_id: string }>
  listTokens(caller: Caller): Promise<TokenShape[]>
  revokeToken(caller: Caller, tokenId: string): Promise<void>
}

/** The caller of open mode, and of the command line that works on the store itself. */
export const LOCAL_ADMIN: Caller = { userId: 'local', role: 'admin' }

/** A token that was just seen is trusted for this long without asking the store; so long can a revoked one live on. */
const TRUST_MS = 1_000
const TRUSTED_MAX = 10_000
const REMEMBERED_MS = 3_600_000
const SECRET_BYTES = 32

export function createAccessService({ world, store: db }: Pick<Deps, 'world' | 'store'>): AccessService {
  const trusted = new Map<string, { caller: Caller; untilMs: number }>()
  let required = false
  let seenOpen = false
  const readRequired = freshRead(() => db.read(store.readAuthRequired()))

  function trustedCaller(hash: string): Caller | null {
    const known = trusted.get(hash)
    return known !== undefined && known.untilMs > world.monotonic() ? known.caller : null
  }

  function administer(caller: Caller): void {
    if (!can(caller, 'administer')) throw new IchidoError('FORBIDDEN')
  }

  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  return {
    async isAuthRequired() {
      if (required) return true
      // Another reading, or a token made here, may have ended it meanwhile.
      required = (await readRequired()) || required
      seenOpen = !required
      return required
    },

    knownCaller: (token) => trustedCaller(hashToken(token)),
    lastKnownCaller(token) {
      const known = trusted.get(hashToken(token))
      return known !== undefined && known.untilMs + REMEMBERED_MS > world.monotonic() ? known.caller : null
    },
    wasOpen: () => seenOpen && !required,

    async authenticate(token) {
      const hash = hashToken(token)
      const known = trustedCaller(hash)
      if (known !== null) return known
      const found = await db.read(store.findToken(hash))
      if (found === null || !sameHash(found.tokenHash, hash)) {
        trusted.delete(hash)
        return null
      }
      const { tokenId, userId, role } = found
      const caller = { tokenId, userId, role }
      if (trusted.size >= TRUSTED_MAX) trusted.clear()
      trusted.set(hash, { caller, untilMs: world.monotonic() + TRUST_MS })
      return caller
    },

    async createToken(caller, { userId, role, name, ttlSeconds }) {
      administer(caller)
      const token = `ichido_${world.secret(SECRET_BYTES)}`
      const tokenId = world.uuid()
      const ttlMs = ttlSeconds === null ? null : Math.round(ttlSeconds * 1000)
      const made = { tokenId, tokenHash: hashToken(token), userId, role, name, ttlMs }
      await db.write(store.createToken(made, by(caller)))
      required = true
      return { token, token_id: tokenId }
    },

    async listTokens(caller) {
      administer(caller)
      return (await db.read(store.listTokens())).map(renderToken)
    },

    async revokeToken(caller, tokenId) {
      administer(caller)
      requireId('token', tokenId)
      const found = await db.write(store.revokeToken(tokenId, by(caller)))
      trusted.clear()
      if (!found) throw notFound('token', tokenId)
    },
  }
}

export function hashToken(token: string): string {
  return createHash('sha256').update(token).digest('hex')
}

/** The index found it by equality already; comparing again in constant time costs nothing and leaks nothing. */
export function sameHash(a: string, b: string): boolean {
  return a.length === b.length && timingSafeEqual(Buffer.from(a), Buffer.from(b))
}

function renderToken(token: store.Token): TokenShape {
  return {
    token_id: token.tokenId,
    user_id: token.userId,
    role: token.role,
    name: token.name,
    created_at: iso(token.createdAtMs),
    expires_at: isoOrNull(token.expiresAtMs),
    revoked_at: isoOrNull(token.revokedAtMs),
  }
}
