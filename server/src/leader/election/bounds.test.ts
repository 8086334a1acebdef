import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import type { SettingName } from '../../core/limits/settings.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import { EVERY_DEAD_LETTER } from '../../store/dead-letters/dead-letters.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { createOperate } from '../duties/operate.ts'
import { createPromote } from '../duties/promote.ts'
import { createReap } from '../duties/reap.ts'
import { ClockWatch } from './clock-watch.ts'

/** Loops take what the settings say, from their next tick on. */
describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(() => scene.clear())
  afterAll(() => scene.close())

  const set = (name: SettingName, value: number) => scene.services.settings.put(LOCAL_ADMIN, name, value)
  const submitAll = async (count: number, input: Parameters<LeaderScene['submit']>[0] = {}) => {
    for (let i = 0; i < count; i++) await scene.submit(input)
  }
  const take = (max: number) =>
    scene.services.runs.lease('worker', { queues: ['default'], kinds: ['work'], max, waitMs: 0 })
  const inState = async (state: string) =>
    (await sql(scene.store, 'SELECT id FROM ichido.runs WHERE latest AND state = $1', state)).length

  test('reassign_after_seconds and reap_batch_max', async () => {
    const { store, world } = scene
    const reap = createReap({ ...scene, clock: new ClockWatch(world), leading: trusting(await seize(store)) })
    await reap()
    await set('reassign_after_seconds', 30)
    await set('reap_batch_max', 2)
    await submitAll(5, { lease_ttl_seconds: 1 })
    await take(5)
    await scene.pass(20_000)
    await reap()
    expect(await inState('ORPHANED'), 'they have 30 s to start').toBe(0)
    await set('reassign_after_seconds', 15)
    const seen: number[] = []
    for (let wait: number | null = 0; wait === 0; ) {
      wait = await reap()
      seen.push(await inState('ORPHANED'))
    }
    expect(seen).toEqual([2, 4, 5])
  })

  test('promote_batch_max', async () => {
    const promote = createPromote(scene)
    await submitAll(5, { delay_seconds: 10 })
    await scene.pass(11_000)
    await set('promote_batch_max', 3)
    expect(await promote()).toBe(0)
    expect(await take(9)).toHaveLength(3)
    await set('promote_batch_max', 9)
    await promote()
    expect(await take(9)).toHaveLength(2)
  })

  test('operation_batch_max', async () => {
    await submitAll(5)
    const leases = await scene.services.runs.lease('worker', {
      queues: ['default'],
      kinds: ['work'],
      max: 5,
      waitMs: 0,
      startId: 's',
    })
    const error = { code: 'X', message: 'x' }
    for (const { lease_id } of leases) {
      await scene.services.runs.finish('worker', lease_id, { verb: 'fail', error, retryable: false })
    }
    const begun = await scene.services.redrives.begin(
      LOCAL_ADMIN,
      { jobIds: leases.map(({ job_id }) => job_id), filter: EVERY_DEAD_LETTER },
      null,
    )
    await set('operation_batch_max', 2)
    const redrive = createOperate(scene, await seize(scene.store))
    await redrive()
    expect(await scene.services.redrives.get(LOCAL_ADMIN, begun.redrive_id)).toMatchObject({ redriven: 2 })
    await redrive()
    expect(await scene.services.redrives.get(LOCAL_ADMIN, begun.redrive_id)).toMatchObject({ redriven: 4 })
  })
})
