import { randomUUID } from 'node:crypto'
import { expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../../scripts/testing/fake-world.ts'
import { StoreUnavailable } from '../../core/node/store-errors.ts'
import { realWorld } from '../../node/world.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { thrownBy } from '../../testing/services/embedded.ts'
import { sql } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import { silentMeter } from '../system/meter.ts'
import { PerUserQueue } from './reservations.ts'

const counted: string[] = []
const entriesOf = (subject: string) => ({ actor: null, action: null, subject, fromMs: null, toMs: null })
const meter = { ...silentMeter, reservation: (outcome: string) => void counted.push(outcome) }

eachServices(
  ({ services, submit }) => {
    const reservations = () => services().reservations
    const expire = (id: string) =>
      sql(
        services().deps.store,
        'UPDATE ichido.job_reservations SET expires_at = now_ms() WHERE reservation_id = $1',
        id,
      )
    const limit = (userId: string, max_concurrent: number) =>
      services().quotas.put(LOCAL_ADMIN, userId, { max_concurrent, cost_limit: null, period: 'month' })

    test('a reservation lives for 300 s by default', async () => {
      const caller = callerOf('submitter')
      const made = await reservations().reserve(caller)
      expect(made).toEqual({
        reservation_id: expect.any(String),
        user_id: caller.userId,
        state: 'active',
        created_at: expect.any(String),
        expires_at: expect.any(String),
        job_id: null,
        quota_warnings: [],
      })
      const life = ({ created_at, expires_at }: typeof made) => Date.parse(expires_at) - Date.parse(created_at)
      expect(life(made)).toBe(300_000)
      expect(life(await reservations().reserve(caller, 1.5))).toBe(1_500)
    })

    test('an operator and the owner release it at once: it ends once, and at most one entry says so', async () => {
      const [owner, operator] = [callerOf('submitter'), callerOf('operator')]
      for (let round = 0; round < 10; round++) {
        const { reservation_id } = await reservations().reserve(owner)
        counted.length = 0
        const answers = await Promise.all([owner, operator].map((one) => reservations().release(one, reservation_id)))
        expect(answers.map(({ state }) => state)).toEqual(['released', 'released'])
        expect(counted).toEqual(['released'])
        const { data } = await services().audit.list(LOCAL_ADMIN, entriesOf(reservation_id), 10, null)
        expect(data.length).toBeLessThanOrEqual(1)
      }
    })

    test('an operator gives back the slot of another user, and the audit says so; a submitter cannot', async () => {
      const [owner, operator] = [callerOf('submitter'), callerOf('operator')]
      const { reservation_id } = await reservations().reserve(owner)
      expect(await thrownBy(reservations().release(callerOf('submitter'), reservation_id))).toMatchObject({
        code: 'NOT_FOUND',
      })
      expect(await reservations().release(operator, reservation_id)).toMatchObject({ state: 'released' })
      expect(await thrownBy(reservations().release(operator, randomUUID()))).toMatchObject({ code: 'NOT_FOUND' })
      const { data } = await services().audit.list(LOCAL_ADMIN, entriesOf(reservation_id), 10, null)
      expect(data).toMatchObject([{ actor: operator.userId, action: 'reservation.release' }])
    })

    test('it holds a slot until it is released, expires, or goes to a job', async () => {
      const caller = callerOf('submitter')
      await limit(caller.userId, 2)
      const [one, two] = [await reservations().reserve(caller), await reservations().reserve(caller)]
      expect(two.quota_warnings).toEqual(['2 of 2 concurrent jobs in use'])
      expect(await thrownBy(reservations().reserve(caller))).toMatchObject({
        code: 'QUOTA_EXCEEDED',
        message: 'Quota exceeded: Maximum 2 concurrent jobs allowed',
      })
      await expect(submit(caller)).rejects.toThrow('Quota exceeded')

      const job = await submit(caller, { reservation_id: one.reservation_id })
      expect(await reservations().get(caller, one.reservation_id)).toMatchObject({ state: 'consumed', job_id: job })
      await expect(submit(caller)).rejects.toThrow('Quota exceeded')
      await expire(two.reservation_id)
      expect(await reservations().get(caller, two.reservation_id)).toMatchObject({ state: 'expired' })
      await submit(caller)
      await expect(submit(caller)).rejects.toThrow('Quota exceeded')
      await services().jobs.cancel(caller, job)
      await reservations().reserve(caller)
    })

    test('consuming is idempotent, and refused with another job', async () => {
      const caller = callerOf('submitter')
      const { reservation_id } = await reservations().reserve(caller)
      const [job, other] = [await submit(caller), await submit(caller)]
      const consumed = await reservations().consume(caller, reservation_id, job)
      expect(consumed).toMatchObject({ state: 'consumed', job_id: job })
      expect(await reservations().consume(caller, reservation_id, job)).toEqual(consumed)
      for (const call of [
        () => reservations().consume(caller, reservation_id, other),
        () => reservations().release(caller, reservation_id),
      ]) {
        const message = `The reservation ${reservation_id} is consumed`
        expect(await thrownBy(call())).toMatchObject({ code: 'RESERVATION_NOT_ACTIVE', message })
      }
    })

    test('it cannot be used after its release or expiry, and release is idempotent', async () => {
      const caller = callerOf('submitter')
      const [released, expired] = [await reservations().reserve(caller), await reservations().reserve(caller)]
      const first = await reservations().release(caller, released.reservation_id)
      expect(first).toMatchObject({ state: 'released' })
      expect(await reservations().release(caller, released.reservation_id)).toEqual(first)
      await expire(expired.reservation_id)
      const job = await submit(caller)
      for (const { reservation_id } of [released, expired]) {
        const error = await thrownBy(reservations().consume(caller, reservation_id, job))
        expect(error).toMatchObject({ code: 'RESERVATION_NOT_ACTIVE' })
        await expect(submit(caller, { reservation_id })).rejects.toThrow('holds no slot')
      }
      expect(await thrownBy(reservations().release(caller, expired.reservation_id))).toMatchObject({
        code: 'RESERVATION_NOT_ACTIVE',
      })
    })

    test('repeats with a chosen id hold one slot, also concurrent ones', async () => {
      const caller = callerOf('submitter')
      counted.length = 0
      for (const max of [1, null]) {
        if (max !== null) await limit(caller.userId, max)
        else await services().quotas.clear(LOCAL_ADMIN, caller.userId)
        const id = randomUUID()
        const made = await Promise.all(Array.from({ length: 8 }, () => reservations().reserve(caller, 60, id)))
        expect(new Set(made.map(({ reservation_id }) => reservation_id))).toEqual(new Set([id]))
        const page = { userId: caller.userId, activeOnly: true, limit: 10, cursor: null }
        expect((await reservations().list(caller, page)).data).toHaveLength(1)
        await reservations().release(caller, id)
        const message = `The reservation ${id} is released`
        expect(await thrownBy(reservations().reserve(caller, 60, id))).toMatchObject({ message })
        const other = await thrownBy(reservations().reserve(callerOf('submitter'), 60, id))
        expect(other).toMatchObject({ code: 'NOT_FOUND' })
      }
      expect(counted).toEqual(['reserved', 'released', 'reserved', 'released'])
    })

    test('lists show the newest first in pages, or only active ones', async () => {
      const caller = callerOf('submitter')
      const ids: string[] = []
      for (let i = 0; i < 5; i++) ids.unshift((await reservations().reserve(caller)).reservation_id)
      await reservations().release(caller, ids[1] ?? '')
      await expire(ids[2] ?? '')
      const page = { userId: caller.userId, activeOnly: false, limit: 2, cursor: null }
      const seen: string[] = []
      for (let cursor: string | null = null, pages = 0; pages < 3; pages++) {
        const { data, next_cursor } = await reservations().list(LOCAL_ADMIN, { ...page, cursor })
        seen.push(...data.map(({ reservation_id }) => reservation_id))
        cursor = next_cursor
        expect(cursor === null).toBe(pages === 2)
      }
      expect(seen).toEqual(ids)
      const active = await reservations().list(caller, { ...page, activeOnly: true, limit: 10 })
      expect(active.data.map(({ reservation_id }) => reservation_id)).toEqual([ids[0], ids[3], ids[4]])
    })

    test('each outcome is counted once', async () => {
      const caller = callerOf('submitter')
      await limit(caller.userId, 2)
      const job = await submit(caller)
      counted.length = 0
      const { reservation_id } = await reservations().reserve(caller)
      await thrownBy(reservations().reserve(caller))
      await reservations().consume(caller, reservation_id, job)
      await reservations().consume(caller, reservation_id, job)
      const { reservation_id: second } = await reservations().reserve(caller)
      await reservations().release(caller, second)
      await reservations().release(caller, second)
      expect(counted).toEqual(['reserved', 'refused', 'consumed', 'reserved', 'released'])
    })
  },
  { meter },
)

test('the calls of a user run one by one, and do not delay other users', async () => {
  const turns = new PerUserQueue(realWorld)
  const begun: string[] = []
  const open = new Map<string, PromiseWithResolvers<string>>()
  const call = (user: string, name: string) =>
    turns.take(user, () => {
      begun.push(name)
      const call = Promise.withResolvers<string>()
      open.set(name, call)
      return call.promise
    })
  const first = call('a', 'a1')
  const failing = call('a', 'a2').catch(String)
  const third = call('a', 'a3')
  const other = call('b', 'b1')
  await settled()
  expect(begun).toEqual(['a1', 'b1'])
  open.get('b1')?.resolve('b1')
  expect(await other).toBe('b1')
  open.get('a1')?.resolve('a1')
  expect(await first).toBe('a1')
  await settled()
  open.get('a2')?.reject(new Error('no'))
  expect(await failing).toBe('Error: no')
  await settled()
  open.get('a3')?.resolve('a3')
  expect(await third).toBe('a3')
  expect(begun).toEqual(['a1', 'b1', 'a2', 'a3'])
})

test('a call that waits too long is refused, and later calls keep their turn', async () => {
  const world = new FakeWorld()
  const turns = new PerUserQueue(world)
  const first = Promise.withResolvers<string>()
  const begun: string[] = []
  const call = (name: string, answer: Promise<string>) =>
    turns.take('a', () => {
      begun.push(name)
      return answer
    })
  const held = call('a1', first.promise)
  const late = call('a2', Promise.resolve('a2')).catch((error: unknown) => error)
  await world.pass(10_000)
  const later = call('a3', Promise.resolve('a3'))
  await world.pass(5_000)
  expect(await late).toBeInstanceOf(StoreUnavailable)
  expect(begun).toEqual(['a1'])
  first.resolve('a1')
  expect(await Promise.all([held, later])).toEqual(['a1', 'a3'])
  expect(begun).toEqual(['a1', 'a3'])
})
