import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { LOCAL_ADMIN } from '../services/access.ts'
import { type LeaderScene, leaderScene } from '../testing/leader-scene.ts'
import { ENGINES } from '../testing/services.ts'
import { sql } from '../testing/store.ts'
import { createRetain } from './retain.ts'

const HOUR_MS = 3_600_000

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let retain: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
    retain = createRetain(scene)
  })
  afterEach(() => scene.clear())
  afterAll(() => scene.close())

  const keys = async () => {
    const { data } = await scene.services.keys.list(LOCAL_ADMIN, false, 2_000, null)
    return data.map(({ key }) => key).sort()
  }
  const end = (id: string) => scene.services.jobs.cancel(LOCAL_ADMIN, id)

  test('a key goes when its time is up and its job has ended, not before either', async () => {
    const ended = await scene.submit({ key_ttl_hours: 1 }, 'ended')
    await scene.submit({ key_ttl_hours: 1 }, 'active')
    await end(await scene.submit({ key_ttl_hours: 2 }, 'young'))
    await end(ended)
    await scene.pass(HOUR_MS - 10_000)
    await retain()
    expect(await keys()).toEqual(['active', 'ended', 'young'])
    await scene.pass(10_000)
    expect(await retain()).toBeNull()
    expect(await keys()).toEqual(['active', 'young'])
    expect(await scene.submit({ key_ttl_hours: 1 }, 'ended')).not.toBe(ended)
  })

  test('more than a batch is asked for at once', async () => {
    await Promise.all(Array.from({ length: 1_001 }, (_, i) => scene.submit({}, `key-${i}`)))
    await sql(scene.store, "UPDATE ichido.runs SET state = 'SUCCEEDED'")
    await scene.pass(24 * HOUR_MS)
    expect(await retain()).toBe(0)
    expect(await keys()).toHaveLength(1)
    expect(await retain()).toBeNull()
    expect(await keys()).toEqual([])
  })
})
