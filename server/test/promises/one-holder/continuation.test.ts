import { v7 } from 'uuid'
import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { createReap } from '../../../src/leader/duties/reap.ts'
import { ClockWatch } from '../../../src/leader/election/clock-watch.ts'
import { LOCAL_ADMIN } from '../../../src/services/access/access.ts'
import { retryJob } from '../../../src/store/jobs/retry-jobs.ts'
import { type LeaderScene, leaderScene } from '../../../src/testing/nodes/leader-scene.ts'
import { seize, trusting } from '../../../src/testing/nodes/reaper.ts'
import { ENGINES } from '../../../src/testing/services/services.ts'
import { registered } from '../../../src/testing/services/workers.ts'

/** Hazard 5: while a process may still work, only the continuation time ends its run and frees its job for other workers. */

const MINUTE_MS = 60_000
// These times are long, so that the five seconds of tolerance for a busy machine are a small part of them.
const LEASE_MS = 50_000
const CONTINUATION_MS = 100_000
const TIMES = { lease_ttl_seconds: LEASE_MS / 1000, continuation_seconds: CONTINUATION_MS / 1000 }
/** compat/zpe: no heartbeats, and a lease as long as a run may take. */
const SHORT = { lease_ttl_seconds: 10, continuation_seconds: 20 }
const NO_HEARTBEATS = { lease_ttl_seconds: 3600, continuation_seconds: 0, timeout_seconds: 3600 }

const DONE = {
  verb: 'finish',
  result: '1',
  summaryText: null,
  freqsCsv: null,
  meta: null,
  costMicros: null,
} as const

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let clock: ClockWatch
  let reap: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(async () => {
    await scene.clear()
    clock = new ClockWatch(scene.world)
    await takeOver()
  })
  afterAll(() => scene.close())

  /** Elects the same node again: its waits start again, but its clock watch continues. */
  async function takeOver(): Promise<void> {
    const { store } = scene
    reap = createReap({ ...scene, clock, leading: trusting(await seize(store)) })
  }

  async function started(input: Parameters<LeaderScene['submit']>[0], worker = 'worker') {
    const id = await scene.submit(input)
    const call = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0, startId: 'process' }
    const [lease] = await scene.services.runs.lease(worker, call)
    if (lease?.job_id !== id) throw new Error('The worker should have got this very job')
    return { id, leaseId: lease.lease_id }
  }
  const runs = async (id: string) => (await scene.services.jobs.get(LOCAL_ADMIN, id)).runs
  const states = async (id: string) => (await runs(id)).map(({ state }) => state)
  const leasable = () =>
    scene.services.runs.lease('other', { queues: ['default'], kinds: ['work'], max: 10, waitMs: 0, startId: 'other' })

  test.each([10 * MINUTE_MS, -10 * MINUTE_MS])(
    'the clock jumps by %s ms and back, also at a new leader: no live run times out',
    async (ms) => {
      const without = await started(NO_HEARTBEATS)
      await scene.pass(55 * MINUTE_MS)
      const workers = ['a', 'b', 'c']
      const live = [
        await started(SHORT, 'a'),
        await started({ ...SHORT, timeout_seconds: 300 }, 'b'),
        await started({ ...SHORT, lease_ttl_seconds: 86_400 }, 'c'),
      ]
      await reap()
      for (const jumpMs of [ms, -ms]) {
        await scene.jump(jumpMs)
        await reap()
        for (let beat = 0; beat < 6; beat++) {
          if (beat === 3) await takeOver()
          await scene.pass((SHORT.lease_ttl_seconds * 1000) / 2)
          await reap()
          for (const [i, { leaseId }] of live.entries()) {
            const heard = await scene.services.runs.heartbeat(workers[i] ?? '', leaseId)
            expect(heard).toMatchObject({ kind: 'extended' })
          }
          await reap()
        }
      }
      for (const { id } of [without, ...live]) expect(await states(id)).toEqual(['RUNNING'])
      for (const [i, { leaseId }] of live.entries()) {
        expect(await scene.services.runs.finish(workers[i] ?? '', leaseId, DONE)).toMatchObject({ state: 'SUCCEEDED' })
      }
      expect(await scene.services.runs.finish('worker', without.leaseId, DONE)).toMatchObject({ state: 'SUCCEEDED' })
      expect(scene.ended.filter((state) => state !== 'SUCCEEDED')).toEqual([])
    },
  )

  test('a poll repeated after a lost answer ends the wait and renews the lease', async () => {
    const id = await scene.submit(TIMES)
    const poll = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0, startId: 'process', pollId: 'lost' }
    const [lost] = await scene.services.runs.lease('worker', poll)
    await scene.pass(LEASE_MS + 1)
    await reap()
    expect(await runs(id)).toMatchObject([{ continuation_state: 'CONFIRMING' }])
    await scene.pass(CONTINUATION_MS - 10_000)
    await reap()
    expect(await scene.services.runs.lease('worker', poll)).toEqual([lost])
    expect(await runs(id)).toMatchObject([{ continuation_state: 'NONE' }])
    await scene.pass(LEASE_MS - 10_000)
    await reap()
    expect([await states(id), await leasable()]).toEqual([['RUNNING'], []])
    expect(await scene.services.runs.finish('worker', lost?.lease_id ?? '', DONE)).toMatchObject({ state: 'SUCCEEDED' })
  })

  test.each([10 * MINUTE_MS, -10 * MINUTE_MS])(
    'a jump of %s ms does not change how long the leader waits for a lost worker',
    async (ms) => {
      const { id } = await started(TIMES)
      await scene.pass(LEASE_MS + 1)
      await reap()
      expect(await runs(id)).toMatchObject([{ continuation_state: 'CONFIRMING' }])
      await scene.jump(ms)
      await reap()
      await scene.pass(CONTINUATION_MS - 5_000)
      await reap()
      expect(await states(id)).toEqual(['RUNNING'])
      await scene.pass(5_000)
      await reap()
      expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
    },
  )

  test('after a jump the leader still detects lost workers', async () => {
    await reap()
    await scene.jump(10 * MINUTE_MS)
    await reap()
    const { id } = await started(TIMES)
    await scene.pass(LEASE_MS + 1)
    await reap()
    await scene.pass(CONTINUATION_MS)
    await reap()
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
  })

  test('revoking fences the worker immediately, and its job waits for the deadline', async () => {
    const { worker_id } = await registered(scene.services)
    const { id, leaseId } = await started({ ...TIMES, backoff: { base_seconds: 0, jitter: 0 } }, worker_id)
    expect(await scene.services.workers.revoke(LOCAL_ADMIN, worker_id)).toMatchObject({ fenced_leases: 1 })
    const { heartbeat, finish: report } = scene.services.runs
    expect(await heartbeat(worker_id, leaseId)).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    expect(await report(worker_id, leaseId, DONE)).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    expect(await leasable()).toEqual([])
    await reap()
    await scene.pass(CONTINUATION_MS - 5_000)
    await scene.jump(10 * MINUTE_MS)
    await reap()
    expect(await leasable()).toEqual([])
    expect(await runs(id)).toMatchObject([{ state: 'RUNNING', continuation_state: 'CONFIRMING' }])
    await scene.pass(5_000)
    scene.woken()
    await reap()
    expect(scene.woken()).toContain('queue:default')
    expect(await runs(id)).toMatchObject([{ state: 'TIMED_OUT', error: { code: 'WORKER_REVOKED' } }, {}])
    expect(await leasable()).toMatchObject([{ job_id: id, attempt: 2 }])
  })

  test('a canceled run can be retried after its end, and a late report gives CANCELED', async () => {
    const retry = (jobId: string) => scene.store.write(retryJob({ jobId, nextRunId: v7() }, 'someone', v7(), []))
    const heard = await started(TIMES)
    const silent = await started(TIMES, 'silent')
    for (const { id } of [heard, silent]) {
      await scene.services.jobs.cancel(LOCAL_ADMIN, id)
      expect(await retry(id)).toMatchObject({ kind: 'refused', reason: 'NOT_ENDED' })
    }
    await reap()
    expect(await scene.services.runs.finish('worker', heard.leaseId, DONE)).toMatchObject({ state: 'CANCELED' })
    expect(await retry(heard.id)).toMatchObject({ kind: 'retried' })

    await scene.pass(CONTINUATION_MS - 5_000)
    await reap()
    expect(await retry(silent.id)).toMatchObject({ kind: 'refused', reason: 'NOT_ENDED' })
    await scene.pass(5_000)
    await reap()
    expect(await states(silent.id)).toEqual(['CANCELED'])
    expect(await retry(silent.id)).toMatchObject({ kind: 'retried' })
    expect(await scene.services.runs.finish('silent', silent.leaseId, DONE)).toMatchObject({ kind: 'refused' })
  })
})
