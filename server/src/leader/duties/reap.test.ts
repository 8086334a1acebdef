import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { HANDOUTS_MAX, TIMEOUT_GRACE_MS } from '../../core/run/job.ts'
import { LOCAL_ADMIN } from '../../services/access/access.ts'
import type { Store } from '../../store/port.ts'
import { takeOverFolder } from '../../store/runs/reap-runs.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize, trusting } from '../../testing/nodes/reaper.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { sql } from '../../testing/store/store.ts'
import { ClockWatch } from '../election/clock-watch.ts'
import { createReap } from './reap.ts'

// Long compared with five seconds, which a busy machine may need.
const LEASE_MS = 50_000
const CONTINUATION_MS = 100_000
const TIMES = { lease_ttl_seconds: LEASE_MS / 1000, continuation_seconds: CONTINUATION_MS / 1000 }

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let reap: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
  })
  beforeEach(async () => {
    await scene.clear()
    await takeOver()
  })
  afterAll(() => scene.close())

  /** Another node leads from now on, which has seen nothing yet. */
  async function takeOver(store = scene.store): Promise<void> {
    reap = createReap({ ...scene, store, clock: new ClockWatch(scene.world), leading: trusting(await seize(store)) })
  }

  async function lease(start: boolean, worker = 'worker') {
    const call = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0 }
    const [leased] = await scene.services.runs.lease(worker, start ? { ...call, startId: 'process' } : call)
    if (leased === undefined) throw new Error('There should be a run to lease')
    return leased
  }
  /** No heartbeat came until the lease expired. */
  async function lapse(): Promise<void> {
    await scene.pass(LEASE_MS + 1)
    await reap()
  }
  const job = (id: string) => scene.services.jobs.get(LOCAL_ADMIN, id)
  const states = async (id: string) => (await job(id)).runs.map(({ state }) => state)
  const finished = {
    verb: 'finish',
    result: '1',
    summaryText: null,
    freqsCsv: null,
    meta: null,
    costMicros: null,
  } as const

  test('an assigned run with an expired lease goes to the next worker', async () => {
    const id = await scene.submit(TIMES)
    const first = await lease(false)
    await scene.pass(LEASE_MS - 5_000)
    await reap()
    expect(await states(id)).toEqual(['ASSIGNED'])
    await scene.pass(5_001)
    scene.woken()
    await reap()
    expect(await states(id)).toEqual(['ORPHANED'])
    expect(scene.woken()).toEqual(['queue:default'])
    const start = () => scene.services.runs.start('worker', first.lease_id, 'process')
    expect(await start()).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    expect(await lease(true, 'other')).toMatchObject({ job_id: id, run_id: first.run_id, attempt: 2 })
    expect(await start()).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    expect(await job(id)).toMatchObject({ state: 'RUNNING', attempt: 2, retry_count: 0 })
  })

  test('a running run with an expired lease ends after the continuation time', async () => {
    const id = await scene.submit({ ...TIMES, backoff: { base_seconds: 5, jitter: 0 } })
    const { lease_id } = await lease(true)
    await scene.pass(LEASE_MS - 5_000)
    await reap()
    expect((await job(id)).runs).toMatchObject([{ continuation_state: 'NONE', continuation_check_deadline_at: null }])
    await scene.pass(5_001)
    await reap()
    const [confirming] = (await job(id)).runs
    expect(confirming).toMatchObject({ state: 'RUNNING', continuation_state: 'CONFIRMING', error: null })
    const untilMs = Date.parse(confirming?.continuation_check_deadline_at ?? '')
    const lapsedMs = Date.parse(confirming?.lease_expires_at ?? '')
    expect(Math.round((untilMs - lapsedMs) / 1000)).toBe(CONTINUATION_MS / 1000)

    // A heartbeat comes in time: everything starts again.
    await scene.pass(CONTINUATION_MS - 5_000)
    await reap()
    expect(await scene.services.runs.heartbeat('worker', lease_id)).toMatchObject({ kind: 'extended' })
    expect((await job(id)).runs).toMatchObject([{ continuation_state: 'NONE', continuation_check_deadline_at: null }])
    await scene.pass(LEASE_MS + 1)
    await reap()
    await scene.pass(CONTINUATION_MS - 5_000)
    await reap()
    expect(await states(id)).toEqual(['RUNNING'])
    await scene.pass(5_000)
    scene.woken()
    await reap()
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
    expect(scene.woken()).toContain(`job:${id}`)
    expect(scene.ended).toEqual(['TIMED_OUT'])
    const { runs, ...rest } = await job(id)
    expect(rest).toMatchObject({ state: 'PENDING', attempt: 1, retry_count: 1 })
    expect(runs[0]).toMatchObject({ error: { code: 'WORKER_LOST' }, continuation_state: 'NONE' })
    const [ended, next] = runs.map(({ finished_at, run_at }) => Date.parse(finished_at ?? run_at))
    expect(Math.round(((next ?? 0) - (ended ?? 0)) / 1000)).toBe(5)

    // Later reports of its worker change nothing.
    expect(await scene.services.runs.heartbeat('worker', lease_id)).toEqual({
      kind: 'refused',
      reason: 'ALREADY_ENDED',
    })
    expect(await scene.services.runs.finish('worker', lease_id, finished)).toEqual({
      kind: 'refused',
      reason: 'ALREADY_ENDED',
    })
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
  })

  test('a report is accepted while the run is CONFIRMING', async () => {
    const id = await scene.submit(TIMES)
    const { lease_id, version } = await lease(true)
    await lapse()
    expect(await scene.services.runs.finish('worker', lease_id, finished, { version })).toMatchObject({
      kind: 'recorded',
      state: 'SUCCEEDED',
    })
    await scene.pass(CONTINUATION_MS)
    await reap()
    expect(await states(id)).toEqual(['SUCCEEDED'])
  })

  test('a new leader starts the wait again', async () => {
    const id = await scene.submit(TIMES)
    await lease(true)
    await lapse()
    for (let takeover = 0; takeover < 3; takeover++) {
      await scene.pass(CONTINUATION_MS - 1)
      await takeOver()
      await reap()
      expect(await states(id)).toEqual(['RUNNING'])
    }
    await scene.pass(CONTINUATION_MS)
    await reap()
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
  })

  test('the continuation time comes from the job, else from the queue', async () => {
    await sql(
      scene.store,
      'INSERT INTO ichido.queues (name, continuation_seconds, lease_ttl_seconds) VALUES ($1, 400, 10)',
      'default',
    )
    const own = await scene.submit({ continuation_seconds: 5, lease_ttl_seconds: 10 })
    const queues = await scene.submit({ lease_ttl_seconds: 10 })
    await lease(true)
    await lease(true)
    await lapse()
    await scene.pass(5_000)
    await reap()
    expect(await Promise.all([own, queues].map(states))).toEqual([['TIMED_OUT', 'PENDING'], ['RUNNING']])
    await scene.pass(385_000)
    await reap()
    expect(await states(queues)).toEqual(['RUNNING'])
    await scene.pass(10_000)
    await reap()
    expect(await states(queues)).toEqual(['TIMED_OUT', 'PENDING'])
    await sql(scene.store, 'DELETE FROM ichido.queues')
  })

  test('at the last attempt the job becomes a dead letter', async () => {
    const id = await scene.submit({ ...TIMES, max_attempts: 1 })
    const { run_id } = await lease(true)
    await lapse()
    await scene.pass(CONTINUATION_MS)
    await reap()
    expect(await states(id)).toEqual(['TIMED_OUT'])
    expect(await sql(scene.store, 'SELECT * FROM ichido.dead_letters')).toMatchObject([
      { job_id: id, run_id, error_code: 'WORKER_LOST', retry_count: 1 },
    ])
    await expect(scene.services.jobs.result(LOCAL_ADMIN, id, 0)).rejects.toMatchObject({
      code: 'JOB_FAILED',
      details: { state: 'TIMED_OUT', error: { code: 'WORKER_LOST' } },
    })
  })

  test('a canceled run ends after the same time, even if its worker is alive', async () => {
    const id = await scene.submit(TIMES)
    const { lease_id } = await lease(true)
    await scene.services.jobs.cancel(LOCAL_ADMIN, id)
    await reap()
    for (let heard = 0; heard < 3; heard++) {
      await scene.pass(30_000)
      expect(await scene.services.runs.heartbeat('worker', lease_id)).toMatchObject({ cancelRequested: true })
      await reap()
      expect(await states(id)).toEqual(['RUNNING'])
    }
    await scene.pass(10_000)
    await reap()
    expect(await states(id)).toEqual(['CANCELED'])
    expect(scene.ended).toEqual(['CANCELED'])
    expect(await sql(scene.store, 'SELECT * FROM ichido.dead_letters')).toEqual([])
    expect(await scene.services.runs.finish('worker', lease_id, finished)).toMatchObject({ reason: 'ALREADY_ENDED' })
  })

  test('a recent cancel request does not overrule a heartbeat', async () => {
    const id = await scene.submit(TIMES)
    const { lease_id } = await lease(true)
    let heard = 0
    const write: Store['write'] = async (command) => {
      if (command.name === 'expire' && heard++ === 0) await scene.services.runs.heartbeat('worker', lease_id)
      return scene.store.write(command)
    }
    await takeOver(Object.create(scene.store, { write: { value: write } }))
    await lapse()
    await scene.pass(CONTINUATION_MS - 5_000)
    await scene.services.jobs.cancel(LOCAL_ADMIN, id)
    await reap()
    await scene.pass(6_000)
    expect(await reap()).toBeLessThanOrEqual(CONTINUATION_MS - 6_000 + 1)
    expect([heard, await states(id)]).toEqual([1, ['RUNNING']])
    await scene.pass(CONTINUATION_MS - 6_000)
    await reap()
    expect(await states(id)).toEqual(['CANCELED'])
  })

  test('a run that exceeds its timeout loses its lease, and ends later', async () => {
    const id = await scene.submit({
      timeout_seconds: 305.5,
      continuation_seconds: CONTINUATION_MS / 1000,
      lease_ttl_seconds: 600,
      max_attempts: 2,
    })
    const { lease_id } = await lease(true)
    await scene.pass(305_500 + TIMEOUT_GRACE_MS - 5_000)
    await reap()
    expect(await scene.services.runs.heartbeat('worker', lease_id)).toMatchObject({ kind: 'extended' })
    await scene.pass(5_000)
    await reap()
    expect((await job(id)).runs).toMatchObject([
      { state: 'RUNNING', continuation_state: 'CONFIRMING', error: { code: 'TIMEOUT' } },
    ])
    const { heartbeat, finish: report } = scene.services.runs
    expect(await heartbeat('worker', lease_id)).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    expect(await report('worker', lease_id, finished)).toEqual({ kind: 'refused', reason: 'LEASE_LOST' })
    await scene.pass(CONTINUATION_MS - 5_000)
    await reap()
    expect(await states(id)).toEqual(['RUNNING'])
    await scene.pass(5_000)
    await reap()
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
    expect(await job(id)).toMatchObject({ retry_count: 1, runs: [{ error: { code: 'TIMEOUT' } }, { error: null }] })
  })

  test('a run that was leased again and again without a start is given up', async () => {
    const id = await scene.submit(TIMES)
    for (let handedOut = 1; handedOut <= HANDOUTS_MAX; handedOut++) {
      expect(await lease(false)).toMatchObject({ attempt: handedOut })
      await scene.pass(LEASE_MS + 1)
      await reap()
      if (handedOut < HANDOUTS_MAX) expect(await states(id)).toEqual(['ORPHANED'])
    }
    expect(await states(id)).toEqual(['FAILED'])
    expect(await job(id)).toMatchObject({ error: { code: 'NEVER_STARTED' } })
    expect(await sql(scene.store, 'SELECT job_id, error_code FROM ichido.dead_letters')).toEqual([
      { job_id: id, error_code: 'NEVER_STARTED' },
    ])
  })

  test('runs of local workers of a dead process end at once', async () => {
    const id = await scene.submit({ lease_ttl_seconds: 3600, continuation_seconds: 3600 })
    await lease(true, 'local-1')
    const others = await scene.submit({ lease_ttl_seconds: 3600, continuation_seconds: 3600 })
    await lease(true)
    await scene.store.write(takeOverFolder('local-'))
    await reap()
    expect(await Promise.all([id, others].map(states))).toEqual([['RUNNING'], ['RUNNING']])
    await takeOver()
    await reap()
    expect(await Promise.all([id, others].map(states))).toEqual([['TIMED_OUT', 'PENDING'], ['RUNNING']])
    expect((await job(id)).runs[0]?.error).toMatchObject({ code: 'WORKER_LOST' })
  })

  test('a tick returns when there is something to do next', async () => {
    expect(await reap()).toBeNull()
    await scene.submit(TIMES)
    expect(await reap()).toBeNull()
    await lease(true)
    const lapseMs = await reap()
    expect(lapseMs).toBeGreaterThan(LEASE_MS - 5_000)
    expect(lapseMs).toBeLessThanOrEqual(LEASE_MS + 1)
    await scene.pass(lapseMs ?? 0)
    const endMs = await reap()
    expect(endMs).toBeGreaterThan(CONTINUATION_MS - 5_000)
    expect(endMs).toBeLessThanOrEqual(CONTINUATION_MS + 1)
    await scene.pass(endMs ?? 0)
    expect(await reap()).toBeNull()
    expect(scene.ended).toEqual(['TIMED_OUT'])
  })

  test('live runs and waiting jobs stay untouched', async () => {
    const lost = await scene.submit(TIMES)
    await lease(true)
    const live = await scene.submit({ lease_ttl_seconds: 3600 })
    await lease(true)
    const assigned = await scene.submit({ lease_ttl_seconds: 3600 })
    await lease(false)
    const waiting = await scene.submit(TIMES)
    await lapse()
    await scene.pass(CONTINUATION_MS)
    await reap()
    expect(await Promise.all([lost, live, assigned, waiting].map(states))).toEqual([
      ['TIMED_OUT', 'PENDING'],
      ['RUNNING'],
      ['ASSIGNED'],
      ['PENDING'],
    ])
  })

  test('a full batch continues at once', async () => {
    await Promise.all(Array.from({ length: 201 }, () => scene.submit(TIMES)))
    const call = { queues: ['default'], kinds: ['work'], max: 201, waitMs: 0, startId: 'process' }
    expect(await scene.services.runs.lease('worker', call)).toHaveLength(201)
    await scene.pass(LEASE_MS + 1)
    expect(await reap()).toBe(0)
    expect(await reap()).toBeGreaterThan(0)
    await scene.pass(CONTINUATION_MS)
    expect(await reap()).toBe(0)
    expect(scene.ended).toHaveLength(200)
    expect(await reap()).toBeNull()
    expect(scene.ended).toHaveLength(201)
  })
})
