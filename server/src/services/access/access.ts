import { createHash, timingSafeEqual } from 'node:crypto'
import type { AuditShape, Page, TokenShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import type { Caller, Role } from '../../core/limits/roles.ts'
import * as store from '../../store/access/access.ts'
import { type AuditEntry, type AuditFilter, listAudit } from '../../store/access/audit.ts'
import { iso, isoOrNull, notFound, renderPage, requireAbility, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { freshRead } from '../wait.ts'

export interface NewToken {
  userId: string
  role: Role
  name: string
  ttlSeconds: number | null
}

export interface AccessService {
  /**
   * Whether a token was ever made. From then on every request needs a token. Until then each call asks the store, because
   * any node or command can make the first token, and open mode then ends on all nodes at once.
   */
  isAuthRequired(): Promise<boolean>
  /** The owner of a token; null if the token is unknown, expired or revoked. */
  authenticate(token: string): Promise<Caller | null>
  /** The answer of `authenticate` from memory; null: not known, ask it. */
  knownCaller(token: string): Caller | null
  /** The owner by the last answer of the store, up to an hour ago. It is used while the store does not answer. */
  lastKnownCaller(token: string): Caller | null
  /** Whether no token existed by the last answer of the store. */
  wasOpen(): boolean
  /** Only this answer has the secret; the store keeps its hash. */
  createToken(caller: Caller, token: NewToken): Promise<{ token: string; token_id: string }>
  listTokens(caller: Caller): Promise<TokenShape[]>
  revokeToken(caller: Caller, tokenId: string): Promise<void>
}

/** The caller in open mode, and in commands that open the store directly. */
export const LOCAL_ADMIN: Caller = { userId: 'local', role: 'admin' }

const TRUST_MS = 1_000
const TRUSTED_MAX = 10_000
const REMEMBERED_MS = 3_600_000
const SECRET_BYTES = 32

/** @param sessions those of the tokens; a revoked token ends its own. */
export function createAccessService(
  { world, store: db }: Pick<Deps, 'world' | 'store'>,
  sessions?: { forgetAll(): void },
): AccessService {
  const trusted = new TrustedTokens<Caller>(world)
  let required = false
  let seenOpen = false
  const readRequired = freshRead(() => db.read(store.readAuthRequired()))

  const by = (caller: Caller) => ({ id: world.uuid(), actor: caller.userId })

  return {
    async isAuthRequired() {
      if (required) return true
      // Another read, or a token made here, may have set it meanwhile.
      required = (await readRequired()) || required
      seenOpen = !required
      return required
    },

    knownCaller: (token) => trusted.get(hashToken(token)),
    lastKnownCaller: (token) => trusted.lastKnown(hashToken(token)),
    wasOpen: () => seenOpen && !required,

    async authenticate(token) {
      const hash = hashToken(token)
      const known = trusted.get(hash)
      if (known !== null) return known
      const found = await db.read(store.findToken(hash))
      if (found === null || !sameHash(found.tokenHash, hash)) {
        trusted.forget(hash)
        return null
      }
      const { tokenId, userId, role } = found
      const caller = { tokenId, userId, role }
      trusted.keep(hash, caller)
      return caller
    },

    async createToken(caller, { userId, role, name, ttlSeconds }) {
      requireAbility(caller, 'administer')
      const token = `ichido_${world.secret(SECRET_BYTES)}`
      const tokenId = world.uuid()
      const ttlMs = ttlSeconds === null ? null : Math.round(ttlSeconds * 1000)
      const made = { tokenId, tokenHash: hashToken(token), userId, role, name, ttlMs }
      await db.write(store.createToken(made, by(caller)))
      required = true
      return { token, token_id: tokenId }
    },

    async listTokens(caller) {
      requireAbility(caller, 'administer')
      return (await db.read(store.listTokens())).map(renderToken)
    },

    async revokeToken(caller, tokenId) {
      requireAbility(caller, 'administer')
      requireId('token', tokenId)
      const found = await db.write(store.revokeToken(tokenId, by(caller)))
      trusted.forgetAll()
      sessions?.forgetAll()
      if (!found) throw notFound('token', tokenId)
    },
  }
}

/** Holders of tokens that the store has confirmed a moment ago. A revoked token can live on for this moment. */
export class TrustedTokens<Holder> {
  readonly #world: Pick<World, 'monotonic'>
  readonly #known = new Map<string, { holder: Holder; untilMs: number }>()

  constructor(world: Pick<World, 'monotonic'>) {
    this.#world = world
  }

  get(hash: string): Holder | null {
    return this.#get(hash, 0)
  }

  /** For the time in which the store does not answer. */
  lastKnown(hash: string): Holder | null {
    return this.#get(hash, REMEMBERED_MS)
  }

  /** @param graceMs how long a holder is still known after its time. */
  #get(hash: string, graceMs: number): Holder | null {
    const known = this.#known.get(hash)
    return known !== undefined && known.untilMs + graceMs > this.#world.monotonic() ? known.holder : null
  }

  keep(hash: string, holder: Holder): void {
    if (this.#known.size >= TRUSTED_MAX) this.#known.clear()
    this.#known.set(hash, { holder, untilMs: this.#world.monotonic() + TRUST_MS })
  }

  forget(hash: string): void {
    this.#known.delete(hash)
  }

  forgetAll(): void {
    this.#known.clear()
  }
}

export function hashToken(token: string): string {
  return createHash('sha256').update(token).digest('hex')
}

/** The index has compared the hash already. Comparing again in constant time costs little and leaks nothing. */
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

/** Reads the audit. The commands that make the changes write it. */
export interface AuditService {
  list(caller: Caller, filter: AuditFilter, limit: number, cursor: string | null): Promise<Page<AuditShape>>
}

export function createAuditService({ store }: Deps): AuditService {
  return {
    async list(caller, filter, limit, cursor) {
      requireAbility(caller, 'operate')
      return renderPage(await store.read(listAudit(filter, limit, cursor)), renderEntry)
    },
  }
}

function renderEntry({ auditId, createdAtMs, ...entry }: AuditEntry): AuditShape {
  return { audit_id: auditId, ...entry, created_at: iso(createdAtMs) }
}
