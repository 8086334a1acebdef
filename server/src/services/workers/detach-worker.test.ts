import { afterAll, beforeAll, describe, expect, test } from 'vitest'
import { SETTINGS } from '../../core/limits/settings.ts'
import { createReap } from '../../leader/duties/reap.ts'
import { ClockWatch } from '../../leader/election/clock-watch.ts'
import { noteSeen } from '../../store/workers/workers.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { registered } from '../../testing/services/workers.ts'
import { until } from '../../testing/store/store.ts'
import { LOCAL_ADMIN } from '../access/access.ts'
import type { WorkerIdentity } from './workers.ts'

describe.each(ENGINES)('a detached worker, on %s', (engine) => {
  let scene: LeaderScene
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  afterAll(() => scene.close())

  const workers = () => scene.services.workers
  const shown = async ({ workerId }: WorkerIdentity) => workers().get(LOCAL_ADMIN, workerId)
  const waitsFor = async (id: string) => (await scene.services.jobs.get(LOCAL_ADMIN, id)).waiting_for?.reason
  const poll = ({ workerId }: WorkerIdentity, queue: string) =>
    scene.services.runs.lease(workerId, { queues: [queue], kinds: [], max: 1, waitMs: 0 })

  async function worker(queue = 'default'): Promise<WorkerIdentity & { token: string }> {
    const { worker_token: token } = await registered(scene.services, {}, { queues: [queue] })
    const identity = await workers().authenticate(token)
    if (identity === null || identity === 'revoked') throw new Error('A new worker is known')
    return { ...identity, token }
  }

  test('is not online, and no job waits for it', async () => {
    const stops = await worker('quiet')
    await poll(stops, 'quiet')
    const id = await scene.submit({ queue: 'quiet' })
    expect(await waitsFor(id)).toBe('workers_busy')
    // The note of its poll may still be on its way, and would come after the detach.
    const { detached_at } = await until('a goodbye after that', async () => {
      const goodbye = await workers().detach(stops)
      return (await shown(stops)).last_seen_at === goodbye.detached_at && goodbye
    })
    expect(await shown(stops)).toMatchObject({ state: 'detached', detached_at, last_seen_at: detached_at })
    expect((await workers().list(LOCAL_ADMIN, 1, null)).data).toMatchObject([{ state: 'detached' }])
    expect(await waitsFor(id)).toBe('no_worker')
    await workers().revoke(LOCAL_ADMIN, stops.workerId)
    expect(await shown(stops)).toMatchObject({ state: 'revoked' })
  })

  test('is online again after a renewal, a registration or any request', async () => {
    const back = await worker()
    const online = { state: 'online', detached_at: null }
    await workers().detach(back)
    await workers().renew(back)
    expect(await shown(back)).toMatchObject(online)
    await workers().detach(back)
    await registered(scene.services, { workerId: back.workerId, workerToken: back.token })
    expect(await shown(back)).toMatchObject(online)
    workers().seen(back.workerId)
    await workers().detach(back)
    // The fake clock does not move the clock of the store, so only a fresh call is later.
    await until('the note', async () => {
      workers().seen(back.workerId)
      await scene.pass(100)
      return (await shown(back)).state === 'online'
    })
  })

  test('stays detached when another node writes an earlier call late', async () => {
    const { store } = scene
    const stops = await worker()
    await scene.pass(5_000)
    await workers().detach(stops)
    await scene.pass(500)
    await store.write(noteSeen([{ workerId: stops.workerId, agoMs: 1_000 }]))
    expect(await shown(stops)).toMatchObject({ state: 'detached' })
    await store.write(noteSeen([{ workerId: stops.workerId, agoMs: 100 }]))
    expect(await shown(stops)).toMatchObject({ state: 'online' })
  })

  test('does not delay the runs that it leased and did not start', async () => {
    const { world, store } = scene
    const reap = createReap({ ...scene, clock: new ClockWatch(world), leading: trusting(await seize(store)) })
    await reap()
    const [stops, stays] = [await worker(), await worker()]
    const ids = [await scene.submit(), await scene.submit()]
    for (const one of [stops, stays]) expect(await poll(one, 'default')).toHaveLength(1)
    await workers().detach(stops)
    await scene.pass(SETTINGS.reassign_after_seconds.default * 1_000)
    await reap()
    const states = ids.map(async (id) => (await scene.services.jobs.get(LOCAL_ADMIN, id)).state)
    expect(await Promise.all(states)).toEqual(['ORPHANED', 'ASSIGNED'])
  })
})
