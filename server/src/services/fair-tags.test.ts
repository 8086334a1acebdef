import { expect, test } from 'vitest'
import type { Caller } from '../core/roles.ts'
import { eachServices } from '../testing/each-services.ts'
import { unique } from '../testing/store.ts'

/** Hazard 20: among runs of one priority, users take turns. */

eachServices(({ services, submit }) => {
  const caller = (userId: string): Caller => ({ userId, role: 'submitter' })

  async function submitMany(user: string, queue: string, count: number, input: object = {}): Promise<string[]> {
    return Promise.all(Array.from({ length: count }, () => submit(caller(user), { queue, ...input })))
  }

  async function lease(queue: string, max: number): Promise<string[]> {
    const request = { queues: [queue], kinds: [], max, waitMs: 0 }
    return (await services().runs.lease('w', request)).map(({ job_id }) => job_id)
  }

  test('who comes late with a few jobs does not wait for all of who came first with many', async () => {
    const queue = unique('queue')
    const many = new Set(await submitMany('many', queue, 200))
    expect((await lease(queue, 20)).every((id) => many.has(id))).toBe(true)
    const few = await submitMany('few', queue, 3)
    const next = await lease(queue, 8)
    expect(next.filter((id) => few.includes(id)).sort()).toEqual(few.sort())
    expect(next.filter((id) => many.has(id))).toHaveLength(5)
  })

  test('two who have much get half each', async () => {
    const queue = unique('queue')
    const first = new Set(await submitMany('first', queue, 100))
    await lease(queue, 10)
    await submitMany('second', queue, 100)
    const next = await lease(queue, 60)
    const share = next.filter((id) => first.has(id)).length
    expect(share).toBeGreaterThanOrEqual(25)
    expect(share).toBeLessThanOrEqual(35)
  })

  test('priority wins, and one user’s own jobs keep their order', async () => {
    const queue = unique('queue')
    const calm: string[] = []
    for (let i = 0; i < 5; i++) calm.push(...(await submitMany('a', queue, 1)))
    const urgent = await submitMany('b', queue, 1, { priority: 1 })
    expect(await lease(queue, 6)).toEqual([...urgent, ...calm])
  })
})
