import pg from 'pg'
import { afterAll, afterEach, beforeAll, describe, expect, test } from 'vitest'
import { type FreshDatabase, freshDatabase } from '../../../scripts/testing/services.ts'
import { size } from '../../../scripts/testing/size.ts'
import { LOCAL_ADMIN } from '../services/access.ts'
import { reapRuns } from '../store/commands/reap-runs.ts'
import type { PostgresStore } from '../store/engines/postgres.ts'
import { type LeaderScene, leaderScene } from '../testing/leader-scene.ts'
import { Scene } from '../testing/scene.ts'
import { ENGINES } from '../testing/services.ts'
import { openNode, sql, until } from '../testing/store.ts'
import { realWorld } from '../world.ts'
import { createReap } from './reap.ts'

const LEASE_MS = 10_000
const CONTINUATION_MS = 20_000
const TIMES = { lease_ttl_seconds: 10, continuation_seconds: 20 }

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  let reap: () => Promise<number | null>
  beforeAll(async () => {
    scene = await leaderScene(engine)
    reap = createReap({ world: realWorld, store: scene.store, bus: scene.bus, meter: scene.meter })
  })
  afterEach(() => scene.clear())
  afterAll(() => scene.close())

  async function lease(start: boolean, worker = 'worker') {
    const call = { queues: ['default'], kinds: ['work'], max: 1, waitMs: 0 }
    const [leased] = await scene.services.runs.lease(worker, start ? { ...call, startId: 'process' } : call)
    if (leased === undefined) throw new Error('There should be a run to lease')
    return leased
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

  test('an assigned run whose lease lapsed goes to the next worker; the first one cannot start it any more', async () => {
    const id = await scene.submit(TIMES)
    const first = await lease(false)
    await scene.pass(LEASE_MS - 1_000)
    await reap()
    expect(await states(id)).toEqual(['ASSIGNED'])
    await scene.pass(1_001)
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

  test('a running one is left alone through its lease and continuation time, and ends after it', async () => {
    const id = await scene.submit({ ...TIMES, backoff: { base_seconds: 5, jitter: 0 } })
    const { lease_id } = await lease(true)
    await scene.pass(LEASE_MS + CONTINUATION_MS - 1_000)
    await reap()
    expect(await states(id)).toEqual(['RUNNING'])
    expect(await scene.services.runs.heartbeat('worker', lease_id)).toMatchObject({ kind: 'extended' })
    await scene.pass(LEASE_MS + CONTINUATION_MS - 1_000)
    await reap()
    expect(await states(id)).toEqual(['RUNNING'])
    await scene.pass(1_001)
    scene.woken()
    await reap()
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
    expect(scene.woken()).toContain(`job:${id}`)
    expect(scene.ended).toEqual(['TIMED_OUT'])
    const { runs, ...rest } = await job(id)
    expect(rest).toMatchObject({ state: 'PENDING', attempt: 1, retry_count: 1 })
    expect(runs[0]?.error).toMatchObject({ code: 'WORKER_LOST' })
    const [ended, next] = runs.map(({ finished_at, run_at }) => Date.parse(finished_at ?? run_at))
    expect(Math.round(((next ?? 0) - (ended ?? 0)) / 1000)).toBe(5)

    // What its worker still says changes nothing.
    expect(await scene.services.runs.heartbeat('worker', lease_id)).toEqual({
      kind: 'refused',
      reason: 'ALREADY_ENDED',
    })
    expect(await scene.services.runs.report('worker', lease_id, finished)).toEqual({
      kind: 'refused',
      reason: 'ALREADY_ENDED',
    })
    expect(await states(id)).toEqual(['TIMED_OUT', 'PENDING'])
  })

  test('at the last attempt the job becomes a dead letter', async () => {
    const id = await scene.submit({ ...TIMES, max_attempts: 1 })
    const { run_id } = await lease(true)
    await scene.pass(LEASE_MS + CONTINUATION_MS + 1)
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

  test('one whose cancellation was asked for ends canceled, and nothing follows', async () => {
    const id = await scene.submit(TIMES)
    await lease(true)
    await scene.services.jobs.cancel(LOCAL_ADMIN, id)
    await scene.pass(LEASE_MS + CONTINUATION_MS - 1_000)
    await reap()
    expect(await states(id)).toEqual(['RUNNING'])
    await scene.pass(1_001)
    await reap()
    expect(await states(id)).toEqual(['CANCELED'])
    expect(scene.ended).toEqual(['CANCELED'])
    expect(await sql(scene.store, 'SELECT * FROM ichido.dead_letters')).toEqual([])
  })

  test('live runs and waiting jobs are untouched, whatever happens to their neighbours', async () => {
    const lost = await scene.submit(TIMES)
    await lease(true)
    const live = await scene.submit({ lease_ttl_seconds: 3600 })
    await lease(true)
    const assigned = await scene.submit({ lease_ttl_seconds: 3600 })
    await lease(false)
    const waiting = await scene.submit(TIMES)
    await scene.pass(LEASE_MS + CONTINUATION_MS + 1)
    await reap()
    expect(await Promise.all([lost, live, assigned, waiting].map(states))).toEqual([
      ['TIMED_OUT', 'PENDING'],
      ['RUNNING'],
      ['ASSIGNED'],
      ['PENDING'],
    ])
  })

  test('what does not fit one batch is asked for at once', async () => {
    await Promise.all(Array.from({ length: 201 }, () => scene.submit(TIMES)))
    const call = { queues: ['default'], kinds: ['work'], max: 201, waitMs: 0, startId: 'process' }
    expect(await scene.services.runs.lease('worker', call)).toHaveLength(201)
    await scene.pass(LEASE_MS + CONTINUATION_MS + 1)
    expect(await reap()).toBe(0)
    expect(scene.ended).toHaveLength(200)
    expect(await reap()).toBeNull()
    expect(scene.ended).toHaveLength(201)
  })
})

describe('a heartbeat and the reaper at the same time', () => {
  const spares = () => Array.from({ length: 10 }, () => ({ nextRunId: realWorld.uuid(), random: 0 }))
  const reapNow = () => reapRuns({ continuationMs: 0, spares: spares() })

  let database: FreshDatabase
  let store: PostgresStore
  let client: pg.Client
  beforeAll(async () => {
    database = await freshDatabase()
    store = await openNode(database.url)
    client = new pg.Client(database.url)
    await client.connect()
  })
  afterAll(async () => {
    await client.end()
    await store.close()
    await database.drop()
  })

  test('the reaper passes over a run whose heartbeat has not been committed yet', async () => {
    const scene = new Scene(store)
    const run = await scene.running()
    await scene.age(60_001)
    await client.query('BEGIN')
    await client.query('UPDATE ichido.runs SET lease_expires_at = lease_expires_at + 60000 WHERE id = $1', [run.runId])
    expect(await store.write(reapNow())).toEqual({ queues: [], ended: [] })
    await client.query('COMMIT')
    expect(await store.write(reapNow())).toEqual({ queues: [], ended: [] })
    expect(await scene.state(run.jobId)).toBe('RUNNING')
  })

  test('a heartbeat that waits for the reaper is refused', async () => {
    const scene = new Scene(store)
    const run = await scene.running()
    await scene.age(60_001)
    await client.query('BEGIN')
    expect((await store.writeIn(client, reapNow())).ended).toHaveLength(1)
    const heartbeat = scene.heartbeat(run)
    await until('the heartbeat to wait', async () => {
      const { rows } = await client.query(
        "SELECT 1 FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND datname = current_database()",
      )
      return rows.length > 0
    })
    await client.query('COMMIT')
    expect(await heartbeat).toEqual({ kind: 'refused', reason: 'ALREADY_ENDED' })
  })

  test('either the heartbeat is heard or the run ends, never both and never neither', async () => {
    const scene = new Scene(store)
    for (let round = 0; round < size(40, 1_000); round++) {
      const run = await scene.running()
      await sql(store, 'UPDATE ichido.runs SET lease_expires_at = now_ms() - 1 WHERE id = $1', run.runId)
      const [heartbeat, reaped] = await Promise.all([scene.heartbeat(run), store.write(reapNow())])
      const ended = reaped.ended.length > 0
      expect(ended).toBe(heartbeat.kind === 'refused')
      expect(await scene.state(run.jobId)).toBe(ended ? 'PENDING' : 'RUNNING')
    }
  })
})
