import { beforeEach, expect, test } from 'vitest'
import { realWorld } from '../../node/world.ts'
import { eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { createServices } from '../index.ts'
import { LOCAL_ADMIN } from './access.ts'

const TRUST_MS = 1_000
/** The clock of the cache only. The clock of the store runs normally. */
let elapsedMs = 0
beforeEach(() => {
  elapsedMs += 10 * TRUST_MS
})

eachServices(
  ({ services, engine }) => {
    const create = (changes: { ttlSeconds?: number | null } = {}) => {
      const userId = unique('user')
      const token = { userId, role: 'submitter', name: 'ci', ttlSeconds: null, ...changes } as const
      return services()
        .access.createToken(LOCAL_ADMIN, token)
        .then((made) => ({ ...made, userId }))
    }
    /** A second node on the same store, with a cache of its own. */
    const otherNode = () => createServices(services().deps).access

    test('no token is required before the first one is made, and always after', async () => {
      expect(await services().access.isAuthRequired()).toBe(false)
      const other = otherNode()
      expect(await other.isAuthRequired()).toBe(false)
      const { token_id } = await create()
      expect(await services().access.isAuthRequired()).toBe(true)
      elapsedMs += TRUST_MS
      expect(await other.isAuthRequired()).toBe(true)
      await services().access.revokeToken(LOCAL_ADMIN, token_id)
      expect(await services().access.isAuthRequired()).toBe(true)
      await sql(services().deps.store, 'DELETE FROM ichido.api_tokens')
      expect(await otherNode().isAuthRequired()).toBe(true)
    })

    test('a token names its user, and the database has only its hash', async () => {
      const { token, token_id, userId } = await create()
      expect(token).toMatch(/^ichido_[\w-]{43}$/)
      expect(await services().access.authenticate(token)).toEqual({
        userId,
        role: 'submitter',
        tokenId: expect.any(String),
      })

      const names =
        engine === 'sqlite'
          ? "SELECT name FROM sqlite_schema WHERE type = 'table'"
          : "SELECT table_name AS name FROM information_schema.tables WHERE table_schema = 'ichido'"
      const tables = await sql(services().deps.store, names)
      expect(tables.length).toBeGreaterThan(10)
      let found = ''
      for (const { name } of tables) {
        found += JSON.stringify(await sql(services().deps.store, `SELECT * FROM ichido.${name}`))
      }
      expect(found).toContain(token_id)
      expect(found).not.toContain(token.slice('ichido_'.length))
      expect(await services().access.listTokens(LOCAL_ADMIN)).toContainEqual({
        token_id,
        user_id: userId,
        role: 'submitter',
        name: 'ci',
        created_at: expect.any(String),
        expires_at: null,
        revoked_at: null,
      })
    })

    test.each(['', 'ichido_', 'ichido_AAAA', 'x'.repeat(10_000), 'ümläut'])('%j is no token', async (token) => {
      expect(await services().access.authenticate(token)).toBeNull()
    })

    test('a revoked token is refused here at once, and elsewhere within the trust time', async () => {
      const { token, token_id } = await create()
      const other = otherNode()
      expect(await other.authenticate(token)).not.toBeNull()
      expect(await services().access.authenticate(token)).not.toBeNull()
      await services().access.revokeToken(LOCAL_ADMIN, token_id)
      expect(await services().access.authenticate(token)).toBeNull()
      elapsedMs += TRUST_MS
      expect(await other.authenticate(token)).toBeNull()
      // A repeat succeeds, and does not change the time.
      const revokedAt = async () =>
        (await services().access.listTokens(LOCAL_ADMIN)).find((listed) => listed.token_id === token_id)?.revoked_at
      const first = await revokedAt()
      expect(first).not.toBeNull()
      await services().access.revokeToken(LOCAL_ADMIN, token_id)
      expect(await revokedAt()).toBe(first)
    })

    test('revoking an unknown id is not found', async () => {
      for (const id of ['01890000-0000-7000-8000-000000000000', 'no id']) {
        expect(await thrownBy(services().access.revokeToken(LOCAL_ADMIN, id))).toMatchObject({ code: 'NOT_FOUND' })
      }
    })

    test('an expired token is refused', async () => {
      const { token, token_id } = await create({ ttlSeconds: 60 })
      expect(await services().access.authenticate(token)).not.toBeNull()
      const { store } = services().deps
      await sql(store, 'UPDATE ichido.api_tokens SET expires_at = expires_at - 59000 WHERE token_id = $1', token_id)
      elapsedMs += TRUST_MS
      expect(await services().access.authenticate(token)).not.toBeNull()
      await sql(store, 'UPDATE ichido.api_tokens SET expires_at = now_ms() WHERE token_id = $1', token_id)
      elapsedMs += TRUST_MS
      expect(await services().access.authenticate(token)).toBeNull()
    })

    test('a trusted token is not looked up again', async () => {
      const { token, token_id } = await create()
      await services().access.authenticate(token)
      await sql(services().deps.store, 'DELETE FROM ichido.api_tokens WHERE token_id = $1', token_id)
      elapsedMs += TRUST_MS - 1
      expect(await services().access.authenticate(token)).not.toBeNull()
      elapsedMs += 1
      expect(await services().access.authenticate(token)).toBeNull()
    })
  },
  { world: { ...realWorld, monotonic: () => elapsedMs } },
)
