import { describe, expect, test } from 'vitest'
import { FakeWorld, settled } from '../../../scripts/testing/fake-world.ts'
import type { Store } from '../store/port.ts'
import { callerOf, eachServices } from '../testing/each-services.ts'
import { unique, until } from '../testing/store.ts'
import { createFairTags } from './fair-tags.ts'

/** Hazard 20: priority first, then fair between users, and no more looked at than is handed out (plans.test.ts). */

eachServices(({ services, submit }) => {
  const lease = async (queue: string, max: number) => {
    const leases = await services().runs.lease('w', { queues: [queue], kinds: ['work'], max, waitMs: 0 })
    return leases.map(({ job_id }) => job_id)
  }

  /** The node knows how far the queue has got: it reads that when it first hears of it, beside the submission. */
  async function known(queue: string): Promise<void> {
    const { fairTags } = services()
    await until('the time of the queue', async () => {
      const first = fairTags.tagFor(queue, unique('user'), 0)
      return fairTags.tagFor(queue, unique('user'), 0) === first
    })
  }

  test('a user with one job does not wait for all jobs of a user with many', async () => {
    const queue = unique('queue')
    await known(queue)
    const [heavy, light] = [callerOf('submitter'), callerOf('submitter')]
    for (let i = 0; i < 50; i++) await submit(heavy, { queue })
    const one = await submit(light, { queue })
    expect((await lease(queue, 4)).includes(one)).toBe(true)
    const two = await submit(light, { queue })
    expect((await lease(queue, 4)).includes(two), 'also when some have been handed out').toBe(true)
  })

  test('two users with many take turns', async () => {
    const queue = unique('queue')
    await known(queue)
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

  test('a job of higher priority does not move its user’s others ahead of who comes later', async () => {
    const queue = unique('queue')
    await known(queue)
    const [heavy, light] = [callerOf('submitter'), callerOf('submitter')]
    for (let i = 0; i < 50; i++) await submit(heavy, { queue })
    const urgent = await submit(heavy, { queue, priority: 5 })
    expect(await lease(queue, 1)).toEqual([urgent])
    const one = await submit(light, { queue })
    expect((await lease(queue, 4)).includes(one)).toBe(true)
  })

  test('priority wins over fairness', async () => {
    const queue = unique('queue')
    await known(queue)
    const [heavy, light] = [callerOf('submitter'), callerOf('submitter')]
    const urgent: string[] = []
    for (let i = 0; i < 5; i++) urgent.push(await submit(heavy, { queue, priority: 1 }))
    await submit(light, { queue })
    expect(await lease(queue, 5)).toEqual(urgent)
  })

  test('a kind has its turn among very many that are called alike', async () => {
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
  /** A store that knows one queue: where it stands, and how often that was asked. */
  function fake(head: () => number | null) {
    const world = new FakeWorld()
    let asked = 0
    const store = {
      engine: 'postgres',
      read: async () => {
        asked++
        return head()
      },
    } as unknown as Store
    return { world, tags: createFairTags({ world, store }), asked: () => asked }
  }

  test('begin at the clock, go up one by one, and follow what is leased', async () => {
    const { world, tags } = fake(() => null)
    const first = tags.tagFor('q', 'ann', 0)
    expect(first).toBe(world.now())
    expect(tags.tagFor('q', 'bob', 0), 'before the queue’s time is known: in the order of coming').toBe(first + 1)
    await settled()
    const ann = tags.tagFor('q', 'ann', 0)
    expect(tags.tagFor('q', 'ann', 0)).toBe(ann + 1)
    expect(tags.tagFor('q', 'bob', 0), 'behind his own first').toBe(ann + 1)
    tags.leased('q', ann + 100, 0)
    expect(tags.tagFor('q', 'ann', 0)).toBe(ann + 101)
    tags.leased('q', ann, 0)
    expect(tags.tagFor('q', 'bob', 0), 'a queue’s time never goes back').toBe(ann + 101)
  })

  test('of one user keep their order when the queue’s time becomes known, unless they lie behind a backlog', async () => {
    let head: number | null = null
    const { world, tags } = fake(() => head)
    head = world.now()
    const early = [1, 2, 3].map(() => tags.tagFor('q', 'ann', 0))
    await settled()
    expect(tags.tagFor('q', 'ann', 0)).toBe((early[2] ?? 0) + 1)
    head = world.now() - 1_000
    tags.tagFor('late', 'ann', 0)
    await settled()
    expect(tags.tagFor('late', 'ann', 0)).toBe(head + 1)
  })

  test('are not given out behind a backlog: the head is asked for, at most once a second', async () => {
    let head: number | null = 5
    const { world, tags, asked } = fake(() => head)
    tags.tagFor('q', 'ann', 0)
    await settled()
    for (let i = 0; i < 10; i++) tags.tagFor('q', 'ann', 0)
    expect(tags.tagFor('q', 'bob', 0)).toBe(6)
    expect(asked()).toBe(1)
    head = 50
    await world.pass(1_000)
    tags.tagFor('q', 'ann', 0)
    await settled()
    expect(asked()).toBe(2)
    expect(tags.tagFor('q', 'bob', 0)).toBe(51)
  })
})
