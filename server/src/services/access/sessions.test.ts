import { beforeEach, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { eachServices } from '../../testing/services/each-services.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { createServices } from '../index.ts'
import { hashToken, LOCAL_ADMIN } from './access.ts'
import { csrfTokenOf, SESSION_TTL_MS, SESSIONS_PER_TOKEN_MAX } from './sessions.ts'

const TRUST_MS = 1_000
/** The clock of the caches only. The clock of the store runs normally. */
let elapsedMs = 0
beforeEach(() => {
  elapsedMs += 10 * TRUST_MS
})

eachServices(
  ({ services }) => {
    const store = () => services().deps.store
    async function signedIn(ttlSeconds: number | null = null) {
      const userId = unique('user')
      const token = { userId, role: 'operator', name: 'page', ttlSeconds } as const
      const made = await services().access.createToken(LOCAL_ADMIN, token)
      const session = await services().sessions.create(made.token)
      if (session === null) throw new Error('The token is valid')
      return { ...made, ...session, userId }
    }
    const authenticate = (secret: string) => services().sessions.authenticate(secret)
    /** A second node on the same store, with a cache of its own. */
    const otherNode = () => createServices(services().deps)
    const rowsOf = (tokenId: string) =>
      sql(store(), 'SELECT * FROM ichido.sessions WHERE token_id = $1 ORDER BY created_at, session_id', tokenId)

    test('a session has the rights of its token at every node, and the store has only its hash', async () => {
      const { secret, token_id: tokenId, userId, expiresAtMs } = await signedIn()
      expect(secret).toMatch(/^[\w-]{43}$/)
      const session = { caller: { tokenId, userId, role: 'operator' }, expiresAtMs }
      expect(await authenticate(secret)).toEqual(session)
      expect(await otherNode().sessions.authenticate(secret)).toEqual(session)
      const [row, ...others] = await rowsOf(tokenId)
      expect([row?.session_hash, row?.user_id, others]).toEqual([hashToken(secret), userId, []])
      expect(Number(row?.expires_at) - Number(row?.created_at)).toBe(SESSION_TTL_MS)
      const audit = await sql(store(), 'SELECT * FROM ichido.audit')
      for (const text of [JSON.stringify(row), JSON.stringify(audit)]) {
        expect(text).not.toContain(secret)
        expect(text).not.toContain(csrfTokenOf(secret))
      }
      await sql(store(), "UPDATE ichido.api_tokens SET role = 'viewer' WHERE token_id = $1", tokenId)
      elapsedMs += TRUST_MS
      expect(await authenticate(secret)).toMatchObject({ caller: { role: 'viewer' } })
    })

    test('a session is no token, and a token is no session', async () => {
      const { secret, token } = await signedIn()
      expect(await services().access.authenticate(secret)).toBeNull()
      expect(await authenticate(token)).toBeNull()
      expect(await services().sessions.create(secret)).toBeNull()
      expect(await services().sessions.create('ichido_unknown')).toBeNull()
    })

    test('a session of a revoked token ends here at once, and elsewhere within a second', async () => {
      const { secret, token, token_id } = await signedIn()
      const other = otherNode()
      expect([await authenticate(secret), await other.sessions.authenticate(secret)]).not.toContain(null)
      await services().access.revokeToken(LOCAL_ADMIN, token_id)
      expect(await authenticate(secret)).toBeNull()
      elapsedMs += TRUST_MS
      expect(await other.sessions.authenticate(secret)).toBeNull()
      expect(await services().sessions.create(token)).toBeNull()
    })

    test('a session of an expired token ends, and none outlives its token', async () => {
      const { secret, token, token_id } = await signedIn(60)
      const [row] = await rowsOf(token_id)
      const [of] = await sql(store(), 'SELECT expires_at FROM ichido.api_tokens WHERE token_id = $1', token_id)
      expect(row?.expires_at).toBe(of?.expires_at)
      // Even if the session had more time.
      await sql(store(), 'UPDATE ichido.sessions SET expires_at = expires_at + 60000 WHERE token_id = $1', token_id)
      expect(await authenticate(secret)).not.toBeNull()
      await sql(store(), 'UPDATE ichido.api_tokens SET expires_at = now_ms() WHERE token_id = $1', token_id)
      elapsedMs += TRUST_MS
      expect(await authenticate(secret)).toBeNull()
      expect(await services().sessions.create(token)).toBeNull()
    })

    test('a session ends after its time', async () => {
      const { secret, token_id } = await signedIn()
      await sql(store(), 'UPDATE ichido.sessions SET expires_at = now_ms() + 60000 WHERE token_id = $1', token_id)
      expect(await authenticate(secret)).not.toBeNull()
      await sql(store(), 'UPDATE ichido.sessions SET expires_at = now_ms() WHERE token_id = $1', token_id)
      expect(await otherNode().sessions.authenticate(secret)).toBeNull()
      elapsedMs += TRUST_MS
      expect(await authenticate(secret)).toBeNull()
    })

    test('two sign-outs at once end only this session, and write one audit entry', async () => {
      const { secret, token, token_id, userId } = await signedIn()
      const second = await services().sessions.create(token)
      const other = otherNode()
      expect(await other.sessions.authenticate(secret)).not.toBeNull()
      const [{ session_id } = {}] = await sql(
        store(),
        'SELECT session_id FROM ichido.sessions WHERE session_hash = $1',
        hashToken(secret),
      )
      await Promise.all([services().sessions.end(secret), other.sessions.end(secret)])
      expect([await authenticate(secret), await other.sessions.authenticate(secret)]).toEqual([null, null])
      expect(await authenticate(second?.secret ?? '')).not.toBeNull()
      const filter = { actor: null, action: null, subject: String(session_id), fromMs: null, toMs: null }
      const { data } = await services().audit.list(LOCAL_ADMIN, filter, 10, null)
      const named = { user_id: userId, token_id }
      expect(data).toEqual([
        expect.objectContaining({ actor: userId, action: 'session.delete', before: named, after: null }),
        expect.objectContaining({ actor: userId, action: 'session.create', before: null, after: named }),
      ])
    })

    test('a sign-out counts at another node within a second', async () => {
      const { secret } = await signedIn()
      const other = otherNode()
      expect(await other.sessions.authenticate(secret)).not.toBeNull()
      await services().sessions.end(secret)
      elapsedMs += TRUST_MS
      expect(await other.sessions.authenticate(secret)).toBeNull()
    })

    test('a trusted session is not looked up again', async () => {
      const { secret, token_id } = await signedIn()
      await authenticate(secret)
      await sql(store(), 'DELETE FROM ichido.sessions WHERE token_id = $1', token_id)
      elapsedMs += TRUST_MS - 1
      expect(await authenticate(secret)).not.toBeNull()
      elapsedMs += 1
      expect(await authenticate(secret)).toBeNull()
      expect(services().sessions.lastKnown(secret)).toBeNull()
    })

    test('beyond the maximum, the oldest session of the token ends', async () => {
      const first = await signedIn()
      const stranger = await signedIn()
      // The clocks of nodes differ: the new session stays, even if it seems to be the oldest.
      await sql(
        store(),
        'UPDATE ichido.sessions SET created_at = created_at + 1000 WHERE token_id = $1',
        first.token_id,
      )
      for (let i = 2; i <= SESSIONS_PER_TOKEN_MAX; i++) await services().sessions.create(first.token)
      await sql(
        store(),
        'UPDATE ichido.sessions SET created_at = created_at - 9000 WHERE session_hash = $1',
        hashToken(first.secret),
      )
      expect(await authenticate(first.secret)).not.toBeNull()
      const last = await services().sessions.create(first.token)
      elapsedMs += TRUST_MS
      expect(await authenticate(first.secret)).toBeNull()
      expect(await authenticate(last?.secret ?? '')).not.toBeNull()
      expect(await rowsOf(first.token_id)).toHaveLength(SESSIONS_PER_TOKEN_MAX)
      await sql(
        store(),
        'UPDATE ichido.sessions SET created_at = created_at + 9000 WHERE token_id = $1',
        first.token_id,
      )
      const slow = await services().sessions.create(first.token)
      expect(await authenticate(slow?.secret ?? '')).not.toBeNull()
      expect(await authenticate(stranger.secret)).not.toBeNull()
    })
  },
  { world: { ...realWorld, monotonic: () => elapsedMs } },
)
