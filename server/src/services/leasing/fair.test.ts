import { describe, expect, test } from 'vitest'
import { FakeWorld } from '../../../../scripts/testing/fake-world.ts'
import type { Tagged } from '../../store/leasing/fair-tags.ts'
import type { Command, Store } from '../../store/port.ts'
import { callerOf, eachServices } from '../../testing/services/each-services.ts'
import { unique } from '../../testing/store/store.ts'
import { createFairTags } from './fair-tags.ts'

/** Hazard 20: priority first, then fair between users, and a lease reads no more rows than it needs (plans.test.ts). */

eachServices(({ services, submit }) => {
  const lease = async (queue: string, max: number) => {
    const leases = await services().runs.lease('w', { queues: [queue], kinds: ['work'], max, waitMs: 0 })
    return leases.map(({ job_id }) => job_id)
  }

  test('a user with one job does not wait for all jobs of a user with many', async () => {
    const queue = unique('queue')
    const [heavy, light] = [callerOf('submitter'), callerOf('submitter')]
    for (let i = 0; i < 50; i++) await submit(heavy, { queue })
    const one = await submit(light, { queue })
    expect((await lease(queue, 4)).includes(one)).toBe(true)
    const two = await submit(light, { queue })
    expect((await lease(queue, 4)).includes(two), 'also when some have been handed out').toBe(true)
  })

  test('two users with many jobs take turns', async () => {
    const queue = unique('queue')
    const [a, b] = [callerOf('submitter'), callerOf('submitter')]
    const [jobsOfA, jobsOfB] = [new Set<string>(), new Set<string>()]
    for (let i = 0; i < 20; i++) jobsOfA.add(await submit(a, { queue }))
    for (let i = 0; i < 20; i++) jobsOfB.add(await submit(b, { queue }))
    const first = await lease(queue, 20)
    expect(first.filter((id) => jobsOfA.has(id)).length).toBeGreaterThanOrEqual(9)
    expect(first.filter((id) => jobsOfB.has(id)).length).toBeGreaterThanOrEqual(9)
    expect(
      first.filter((id) => jobsOfA.has(id)),
      'each user’s own come in their order',
    ).toEqual([...jobsOfA].slice(0, first.filter((id) => jobsOfA.has(id)).length))
  })

  test('a high priority does not move other jobs of the user ahead', async () => {
    const queue = unique('queue')
    const [heavy, light] = [callerOf('submitter'), callerOf('submitter')]
    for (let i = 0; i < 50; i++) await submit(heavy, { queue })
    const urgent = await submit(heavy, { queue, priority: 5 })
    expect(await lease(queue, 1)).toEqual([urgent])
    const one = await submit(light, { queue })
    expect((await lease(queue, 4)).includes(one)).toBe(true)
  })

  test('priority wins over fairness', async () => {
    const queue = unique('queue')
    const [heavy, light] = [callerOf('submitter'), callerOf('submitter')]
    const urgent: string[] = []
    for (let i = 0; i < 5; i++) urgent.push(await submit(heavy, { queue, priority: 1 }))
    await submit(light, { queue })
    expect(await lease(queue, 5)).toEqual(urgent)
  })

  test('a rare kind gets its turn among very many kinds', async () => {
    const queue = unique('queue')
    const caller = callerOf('submitter')
    await Promise.all(Array.from({ length: 450 }, (_, i) => submit(caller, { queue, kind: `tenant-${1_000 + i}` })))
    const urgent = await submit(caller, { queue, kind: 'tenant-2000', priority: 9 })
    const any = () => services().runs.lease('w', { queues: [queue], kinds: [], max: 1, waitMs: 0 })
    const leases = [...(await any()), ...(await any())]
    expect(leases.map(({ job_id }) => job_id)).toContain(urgent)
  })
})

describe('tags', () => {
  /** A fake store with one queue and one user, which counts its reads. */
  function fake(standing: { timeTag: number; lastTag: number }) {
    const world = new FakeWorld()
    let asked = 0
    const store = {
      engine: 'postgres',
      write: async ({ name }: Command<unknown>) => {
        if (name !== 'find_last_tags') return [{ ...ANN, tag: standing.timeTag }]
        asked++
        return [{ ...ANN, ...standing }]
      },
    } as unknown as Store
    const tags = createFairTags({ world, store })
    const give = async () => (tags.known([ANN]) ?? (await tags.find([ANN])))[0]?.fairTag
    return { world, tags, give, asked: () => asked }
  }
  const ANN = { queue: 'q', userId: 'ann', priority: 0 }

  test('count up from the last tag of the user and the last leased tag', async () => {
    const { tags, give } = fake({ timeTag: 100, lastTag: 0 })
    expect([await give(), await give()]).toEqual([101, 102])
    tags.leased('q', 150, 0)
    expect(await give()).toBe(151)
    tags.leased('q', 120, 0)
    expect(await give(), 'a queue’s time never goes back').toBe(152)
    tags.leased('q', 500, 7)
    expect(await give(), 'each priority has a time of its own').toBe(153)
    const behind = fake({ timeTag: 100, lastTag: 130 })
    expect(await behind.give()).toBe(131)
  })

  test('are read from the store at most once a second', async () => {
    const standing = { timeTag: 5, lastTag: 0 }
    const { world, give, asked } = fake(standing)
    for (let i = 0; i < 10; i++) await give()
    expect(asked()).toBe(1)
    standing.lastTag = 50
    await world.pass(999)
    expect(await give()).toBe(16)
    await world.pass(1)
    expect(await give()).toBe(51)
    expect(asked()).toBe(2)
  })

  test('of a refused submission are used again after a second', async () => {
    const { world, give } = fake({ timeTag: 5, lastTag: 6 })
    for (let i = 0; i < 10; i++) await give()
    await world.pass(1_000)
    expect(await give()).toBe(7)
  })

  test('that a command gave move its user on', async () => {
    const { tags, give } = fake({ timeTag: 5, lastTag: 6 })
    const answer = (...given: number[]) => given.map((fairTag) => ({ ...ANN, fairTag }))
    const learn = (given: Promise<Tagged[]>) =>
      tags.learnFrom(
        () => given,
        (tagged) => tagged,
      )
    await learn(Promise.resolve(answer(9, 8)))
    expect(await give(), 'behind both').toBe(10)
    const running = Promise.withResolvers<Tagged[]>()
    const learned = learn(running.promise)
    expect([await give(), await give()], 'the command does not know of these').toEqual([11, 12])
    running.resolve(answer(11, 12, 13))
    await learned
    expect(await give(), 'five runs have followed the tenth').toBe(16)
    await learn(Promise.reject(new Error('rolled back'))).catch(() => {})
    expect(await give()).toBe(17)
  })

  test('that a command gave are not known longer than those it could read', async () => {
    const { world, tags, give, asked } = fake({ timeTag: 5, lastTag: 50 })
    await tags.learnFrom(
      () => world.pass(600).then(() => [{ ...ANN, fairTag: 7 }]),
      (tagged) => tagged,
    )
    expect(await give()).toBe(8)
    expect(asked(), 'the command has asked the store').toBe(0)
    await world.pass(400)
    expect(await give()).toBe(51)
  })

  test('that were leased here reach a command before they are shared', async () => {
    const { world, tags } = fake({ timeTag: 7, lastTag: 0 })
    const unshared = () =>
      tags.learnFrom(
        async (leased) => leased,
        () => [],
      )
    tags.leased('q', 7, 0)
    expect(await unshared()).toEqual([{ queue: 'q', priority: 0, tag: 7 }])
    await world.pass(500)
    expect(await unshared()).toEqual([])
  })

  test('that were leased are shared within half a second, once', async () => {
    const world = new FakeWorld()
    const told: unknown[] = []
    const store = {
      write: async ({ work }: Command<unknown>) => {
        const step = work(false).next()
        told.push(step.value)
        return [{ ...ANN, tag: 7 }]
      },
    } as unknown as Store
    const tags = createFairTags({ world, store })
    tags.leased('q', 6, 0)
    tags.leased('q', 7, 0)
    await world.pass(500)
    tags.leased('q', 7, 0)
    await world.pass(500)
    expect(told).toMatchObject([{ rows: [['q', 0, 7]] }])
  })
})
