import { createHash, randomUUID } from 'node:crypto'
import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import { removeKeys } from '../../testing/store/retention.ts'
import { KEY_TTL_MS, only, Scene } from '../../testing/store/scene.ts'
import { sql, unique } from '../../testing/store/store.ts'
import { createToken, findToken, listTokens, readAuthRequired, revokeToken } from '../access/access.ts'
import { extendKeyTo, findKeys, listKeys } from '../submission/keys.ts'
import { raiseEpoch } from '../system/leadership.ts'
import type { Given } from './given.ts'

export function keyConformance({ store }: Given): void {
  describe('keys', () => {
    test('are found by name, of one user or of all users', async () => {
      const [scene, stranger] = [new Scene(store()), new Scene(store())]
      const key = unique('refs/heads')
      const jobId = await scene.submitted({ key })
      const other = await scene.submitted({ key: { key, operation: 'other' } })
      const theirs = await stranger.submitted({ key })
      const found = async (userId: string | null) => (await store().read(findKeys(key, userId))).map((k) => k.jobId)
      expect(await found(scene.userId)).toEqual([other, jobId])
      expect(await found(null)).toEqual([theirs, other, jobId])
      expect(await store().read(findKeys(`${key}x`, null))).toEqual([])
      expect((await store().read(findKeys(key, stranger.userId)))[0]).toEqual({
        key,
        userId: stranger.userId,
        operation: 'submit',
        requestHash: 'hash',
        jobId: theirs,
        createdAtMs: expect.any(Number),
        expiresAtMs: expect.any(Number),
        active: true,
      })
    })

    test('are listed newest first, in pages, active ones or all', async () => {
      const scene = new Scene(store())
      const keys = ['a', 'b', 'c', 'd', 'e']
      for (const key of keys) {
        const jobId = await scene.submitted({ key: { key, ttlMs: key === 'b' || key === 'd' ? 1_000 : KEY_TTL_MS } })
        if (key === 'b') await scene.cancel(jobId)
        await scene.submitted()
      }
      await scene.age(2_000)
      const list = async (activeOnly: boolean, limit: number, after: string | null) => {
        const { rows, next } = await store().read(listKeys(scene.userId, activeOnly, limit, after))
        return { keys: rows.map(({ key }) => key).join(''), next }
      }
      const first = await list(false, 3, null)
      expect(first).toMatchObject({ keys: 'edc', next: expect.any(String) })
      expect(await list(false, 3, first.next)).toEqual({ keys: 'ba', next: null })
      expect(await list(true, 9, null), 'd is over, but its job is not').toEqual({ keys: 'edca', next: null })
      const all = await store().read(listKeys(null, true, 3, null))
      expect(all.rows.map(({ key }) => key)).toEqual(['e', 'd', 'c'])
      expect((await store().read(listKeys(null, true, 3, all.next))).rows[0]?.key).toBe('a')
    })

    test('are extended, never shortened', async () => {
      const scene = new Scene(store())
      await scene.submitted({ key: 'k' })
      const key = only(await store().read(findKeys('k', scene.userId)))
      const extended = await store().write(extendKeyTo(key, 10 * KEY_TTL_MS))
      expect(extended).toBeGreaterThan(key.expiresAtMs + 8 * KEY_TTL_MS)
      expect(await store().write(extendKeyTo(key, 1))).toBe(extended)
      expect(only(await store().read(findKeys('k', scene.userId)))).toMatchObject({ expiresAtMs: extended })
      expect(await store().write(extendKeyTo({ ...key, key: 'absent' }, 1))).toBeNull()
    })

    test('are removed only after they expired and their job ended', async () => {
      const scene = new Scene(store())
      const done = await scene.submitted({ key: 'done' })
      await scene.submitted({ key: 'open' })
      await scene.cancel(done)
      await store().write(removeKeys(1_000))
      await scene.age(KEY_TTL_MS + 1)
      await store().write(removeKeys(1_000))
      const left = (await store().read(listKeys(scene.userId, false, 9, null))).rows.map(({ key }) => key)
      expect(left).toEqual(['open'])
    })

    test('are removed in bounded batches', async () => {
      const scene = new Scene(store())
      await store().write(removeKeys(1_000))
      for (const key of ['a', 'b', 'c']) await scene.cancel(await scene.submitted({ key }))
      await scene.age(KEY_TTL_MS + 1)
      expect(await store().write(removeKeys(2))).toBe(2)
      expect(await store().write(removeKeys(2))).toBe(1)
      expect(await store().write(removeKeys(2))).toBe(0)
    })
  })

  describe('tokens', () => {
    test('are found by their hash until they are revoked or expire', async () => {
      const [token, brief] = [newToken(null), newToken(60_000)]
      await store().write(createToken(token))
      await store().write(createToken(brief))
      const { tokenId, tokenHash, userId, role } = token
      const found = { tokenId, tokenHash, userId, role, streamKey: null }
      expect(await store().read(findToken(tokenHash))).toEqual(found)
      expect(await store().read(findToken(brief.tokenHash))).not.toBeNull()
      expect(await store().read(findToken(tokenHash.slice(1)))).toBeNull()
      await sql(
        store(),
        'UPDATE ichido.api_tokens SET expires_at = expires_at - 60001 WHERE token_id = $1',
        brief.tokenId,
      )
      expect(await store().read(findToken(brief.tokenHash))).toBeNull()
      expect(await store().write(revokeToken(token.tokenId))).toBe(true)
      expect(await store().write(revokeToken(token.tokenId))).toBe(true)
      expect(await store().write(revokeToken(v7()))).toBe(false)
      expect(await store().read(findToken(tokenHash))).toBeNull()
      const listed = (await store().read(listTokens())).filter(({ tokenId }) => tokenId === token.tokenId)
      expect(listed).toMatchObject([{ name: 'ci', expiresAtMs: null, revokedAtMs: expect.any(Number) }])
    })

    test('are made once by a command that runs again after an uncertain commit', async () => {
      const command = createToken(newToken(null))
      await store().write(command)
      await store().write({ name: command.name, work: () => command.work(true) })
    })

    test('after the first token, credentials are required for ever', async () => {
      const token = newToken(null)
      await store().write(createToken(token))
      await store().write(revokeToken(token.tokenId))
      expect(await store().read(readAuthRequired())).toBe(true)
    })
  })

  test('the next start records a raised epoch', async () => {
    const epoch = await store().write(raiseEpoch(5))
    const scene = new Scene(store())
    expect(await scene.running()).toMatchObject({ leaderEpoch: epoch })
    await sql(store(), 'UPDATE ichido.leadership SET epoch = 1')
  })
}

function newToken(ttlMs: number | null) {
  const tokenHash = createHash('sha256').update(randomUUID()).digest('hex')
  return { tokenId: v7(), tokenHash, userId: unique('user'), role: 'submitter' as const, name: 'ci', ttlMs }
}
