import { sleep } from '@ichido/sdk/world'
import { describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import { realWorld } from '../../../src/node/world.ts'
import { EVERY_DEAD_LETTER } from '../../../src/store/dead-letters/dead-letters.ts'
import { setQuota } from '../../../src/store/limits/quotas.ts'
import type { Operation } from '../../../src/store/operations/operations.ts'
import type { Store } from '../../../src/store/port.ts'
import { twoNodes } from '../../../src/testing/nodes/two-nodes.ts'
import { begin, lead, makeDead, progress, redriver } from '../../../src/testing/store/dead-letters.ts'
import { only, Scene } from '../../../src/testing/store/scene.ts'
import { eachEngine, sql, until } from '../../../src/testing/store/store.ts'

/** Hazard 3: redrive bypasses the quota. */

const ONE = { maxConcurrent: 1, costLimitMicros: null, period: 'day' } as const

const activeOf = async (store: Store, userId: string) => {
  const count = `SELECT count(*) AS count FROM ichido.runs
    WHERE user_id = $1 AND latest AND state IN ('PENDING', 'ASSIGNED', 'ORPHANED', 'RUNNING')`
  return Number(only(await sql(store, count, userId)).count)
}

/** Lets jobs that met a full quota be tried again now instead of a second later. */
async function skipPause(store: Store, { operationId }: Operation): Promise<void> {
  await sql(store, 'UPDATE ichido.operations SET next_at = 0 WHERE id = $1', operationId)
}

eachEngine(({ store }) => {
  test('with a quota of 1, a redrive of 10 runs one at a time, and none is lost', async () => {
    const scene = new Scene(store())
    const dead = await makeDead(scene, 10)
    await store().write(setQuota(scene.userId, ONE))
    const begun = await store().write(begin(scene))
    const tick = redriver(store(), await lead(store()))
    const finished: string[] = []
    let most = 0
    await until('all to be done', async () => {
      await tick()
      most = Math.max(most, await activeOf(store(), scene.userId))
      const [lease] = await scene.lease({ startId: 'start' })
      if (lease === undefined) return (await progress(store(), begun)).state === 'done'
      await skipPause(store(), begun)
      await tick()
      await tick()
      const { waiting, done } = await progress(store(), begun)
      expect(waiting + done).toBe(10)
      finished.push(lease.jobId)
      await scene.finish(lease)
      await skipPause(store(), begun)
      return false
    })
    expect(most).toBe(1)
    expect(finished.sort()).toEqual(dead.sort())
    expect(await progress(store(), begun)).toMatchObject({ matched: 10, done: 10, waiting: 0, skipped: 0 })
  })

  test('a user with a full quota does not delay others, and costs one step in total', async () => {
    const [full, free] = [new Scene(store()), new Scene(store())]
    const ids = [...(await makeDead(full, 50)), ...(await makeDead(free, 5))]
    await store().write(setQuota(full.userId, ONE))
    const begun = await store().write(begin(full, { jobIds: ids, filter: EVERY_DEAD_LETTER }))
    const tick = redriver(store(), await lead(store()))
    for (let i = 0; i < 3; i++) await tick()
    expect(await progress(store(), begun)).toMatchObject({ done: 6, waiting: 49 })
    await store().write(setQuota(full.userId, { ...ONE, maxConcurrent: null }))
    await until('the rest', async () => {
      await skipPause(store(), begun)
      await tick()
      return (await progress(store(), begun)).state === 'done'
    })
    expect(await progress(store(), begun)).toMatchObject({ done: 55 })
  })
})

describe('two nodes', () => {
  const nodes = twoNodes()

  test('redrives and submits for one slot never run two jobs at a time', async () => {
    const scene = new Scene(nodes.a())
    const dead = await makeDead(scene, size(10, 50))
    await nodes.a().write(setQuota(scene.userId, ONE))
    const begun = await nodes.a().write(begin(scene))
    const term = await lead(nodes.a())
    let most = 0
    let working = true
    const during = (step: () => Promise<unknown>) =>
      (async () => {
        while (working) await step()
      })()
    const busy = [
      during(redriver(nodes.a(), term)),
      during(redriver(nodes.b(), term)),
      during(() => skipPause(nodes.b(), begun)),
      during(() => scene.submit().then(() => sleep(realWorld, 10))),
      during(async () => {
        most = Math.max(most, await activeOf(nodes.b(), scene.userId))
      }),
    ]
    await until('all to be done', async () => {
      for (const lease of await scene.lease({ startId: 'start', max: 10 })) await scene.finish(lease)
      return (await progress(nodes.a(), begun)).state === 'done'
    }).finally(() => {
      working = false
      return Promise.all(busy)
    })
    expect(most).toBe(1)
    expect(await progress(nodes.a(), begun)).toMatchObject({ done: dead.length, skipped: 0 })
  })
})
