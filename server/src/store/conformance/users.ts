import { v7 } from 'uuid'
import { describe, expect, test } from 'vitest'
import type { Quota } from '../../core/limits/quota.ts'
import { Scene } from '../../testing/store/scene.ts'
import { unique } from '../../testing/store/store.ts'
import { createToken } from '../access/access.ts'
import { clearQuota, findQuota, listUsers, setQuota, type UserUse } from '../limits/quotas.ts'
import type { Listed } from '../port.ts'
import { reserveSlot } from '../submission/reservations.ts'
import type { Given } from './given.ts'

const LIMITS: Quota = { maxConcurrent: 7, costLimitMicros: 5, period: 'day' }
const OWN = { custom: true, ...LIMITS, maxBytes: null }
const NONE = { custom: false, maxConcurrent: null, costLimitMicros: null, period: 'month', maxBytes: null }
const IDLE = { activeJobs: 0, activeReservations: 0, spentMicros: 0, usedBytes: null }
const MADE = { createdAtMs: expect.any(Number) }
const CAME = { createdAtMs: null }

export function userConformance({ store }: Given): void {
  describe('users', () => {
    const token = (userId: string) =>
      store().write(createToken({ tokenId: v7(), tokenHash: v7(), userId, role: 'viewer', name: '', ttlMs: null }))

    /** Those of one test, page by page; others stand before and behind them. */
    async function walk(prefix: string, limit: number): Promise<UserUse[]> {
      const found: UserUse[] = []
      let after: string | null = prefix
      while (after?.startsWith(prefix)) {
        const { rows, next }: Listed<UserUse> = await store().read(listUsers(limit, after))
        found.push(...rows)
        after = next
      }
      return found.filter(({ userId }) => userId.startsWith(prefix))
    }

    test('are those with a token, limits, a job or a reservation, each once with its quota', async () => {
      const prefix = unique('user')
      const [a = '', b = '', c = '', d = '', e = '', f = ''] = [...'abcdef'].map((name) => `${prefix}-${name}`)
      const scene = new Scene(store())
      for (const userId of [d, a]) await store().write(setQuota(userId, LIMITS))
      for (const userId of [a, e, b]) await token(userId)
      await scene.submitted({ userId: c, estimatedCostMicros: 3 })
      await scene.submitted({ userId: a, estimatedCostMicros: 2 })
      await store().write(reserveSlot(v7(), f, 60_000))
      const expected = [
        { userId: a, ...MADE, ...OWN, ...IDLE, activeJobs: 1, spentMicros: 2 },
        { userId: b, ...MADE, ...NONE, ...IDLE },
        { userId: c, ...CAME, ...NONE, ...IDLE, activeJobs: 1, spentMicros: 3 },
        { userId: d, ...CAME, ...OWN, ...IDLE },
        { userId: e, ...MADE, ...NONE, ...IDLE },
        { userId: f, ...CAME, ...NONE, ...IDLE, activeReservations: 1 },
      ]
      for (const limit of [1, 2, 5, 200]) expect(await walk(prefix, limit)).toEqual(expected)
      for (const { createdAtMs: _, ...user } of await walk(prefix, 200)) {
        expect(await store().read(findQuota(user.userId))).toEqual(user)
      }
    })

    test('without limits of their own have the default limits', async () => {
      const prefix = unique('user')
      const userId = `${prefix}-a`
      await token(userId)
      await store().write(setQuota('*', LIMITS))
      try {
        expect(await walk(prefix, 1)).toEqual([{ userId, ...MADE, ...OWN, ...IDLE, custom: false }])
        await store().write(setQuota(userId, { ...LIMITS, maxConcurrent: null }))
        expect(await walk(prefix, 1)).toMatchObject([{ custom: true, maxConcurrent: null, costLimitMicros: 5 }])
        await store().write(clearQuota(userId))
        expect(await walk(prefix, 1)).toMatchObject([{ custom: false, maxConcurrent: 7 }])
      } finally {
        await store().write(setQuota('*', { maxConcurrent: null, costLimitMicros: null, period: 'month' }))
      }
    })

    test('are listed by id, without the row of the default limits', async () => {
      await new Scene(store()).submitted()
      const { rows, next } = await store().read(listUsers(100_000, null))
      const ids = rows.map(({ userId }) => userId)
      expect(next).toBeNull()
      expect(ids).toEqual([...new Set(ids)].sort())
      expect(ids).not.toContain('*')
      expect(await store().read(listUsers(1, ids.at(-1) ?? ''))).toEqual({ rows: [], next: null })
    })
  })
}
