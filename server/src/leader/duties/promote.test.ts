import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { createPromote } from './promote.ts'

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let promote: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
    promote = createPromote(scene)
  })
  afterEach(() => scene.clear())
  afterAll(() => scene.close())

  const lease = (max = 10) =>
    scene.services.runs.lease('worker', { queues: ['default'], kinds: ['work'], max, waitMs: 0 })

  test('a delayed job waits for its time, and then wakes its queue', async () => {
    const id = await scene.submit({ delay_seconds: 30 })
    expect(scene.woken()).toEqual([])
    const leftMs = await promote()
    expect(leftMs).toBeGreaterThan(25_000)
    expect(leftMs).toBeLessThanOrEqual(30_000)
    // PostgreSQL has a clock of its own, which runs on while the test does.
    const earlyMs = engine === 'sqlite' ? 1 : 1_000
    await scene.pass((leftMs ?? 0) - earlyMs)
    await promote()
    expect(await lease()).toEqual([])
    expect(scene.woken()).toEqual([])
    await scene.pass(earlyMs)
    expect(await promote()).toBeNull()
    expect(scene.woken()).toEqual(['queue:default'])
    expect(await lease()).toMatchObject([{ job_id: id }])
  })

  test('without delayed runs there is no next time', async () => {
    await scene.submit()
    scene.woken()
    expect(await promote()).toBeNull()
    expect(scene.woken()).toEqual([])
  })

  test('a canceled job does not come back', async () => {
    const id = await scene.submit({ delay_seconds: 30 })
    await scene.services.jobs.cancel(LOCAL_ADMIN, id)
    await scene.pass(30_000)
    expect(await promote()).toBeNull()
    expect(await lease()).toEqual([])
  })

  test('within one priority the run that was due first is leased first', async () => {
    const late = await scene.submit({ delay_seconds: 20 })
    const early = await scene.submit({ delay_seconds: 10 })
    const urgent = await scene.submit({ delay_seconds: 25, priority: 5 })
    await scene.pass(30_000)
    await promote()
    expect((await lease()).map(({ job_id }) => job_id)).toEqual([urgent, early, late])
  })

  test('two nodes promote each run once, and a full batch continues at once', async () => {
    await Promise.all(Array.from({ length: 1_001 }, () => scene.submit({ delay_seconds: 30 })))
    await scene.pass(30_000)
    expect(await promote()).toBe(0)
    await Promise.all([promote(), promote()])
    expect(await promote()).toBeNull()
    expect(await lease(2_000)).toHaveLength(1_001)
  })
})
