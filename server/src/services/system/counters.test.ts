import type { JobDetail } from '@ichido/sdk/protocol'
import { v7 } from 'uuid'
import { afterAll, beforeAll, beforeEach, describe, expect, onTestFinished, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import type { MinuteCount } from '../../core/limits/minute-counts.ts'
import { realWorld } from '../../node/world.ts'
import { openSqlite } from '../../store/engines/sqlite/sqlite.ts'
import type { Leased } from '../../store/leasing/lease-runs.ts'
import type { Command, Store } from '../../store/port.ts'
import { finishBatch } from '../../store/runs/finish-runs.ts'
import { addMinuteCounts, findMinuteCounts, type MinuteBatch } from '../../store/system/minute-counts.ts'
import { addCounts, type PromiseCounts } from '../../store/system/promise-counters.ts'
import { type TestApp, testApp } from '../../testing/http/app.ts'
import { registeredWorker, type WorkerCalls } from '../../testing/http/worker-calls.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { settingsOf } from '../../testing/store/retention.ts'
import { failed, Scene } from '../../testing/store/scene.ts'
import { sql, type TestStore, testStore, unique } from '../../testing/store/store.ts'
import { countingByMinute, createMinuteCounts, createPromiseCounters, type PromiseCounters } from './counters.ts'
import { silentMeter } from './meter.ts'

const NONE = { duplicates_refused: 0, replays_served: 0, stale_writes_fenced: 0, reassignments: 0 }
const one = (what: keyof PromiseCounts): PromiseCounts => ({
  duplicatesRefused: 0,
  replaysServed: 0,
  staleWritesFenced: 0,
  [what]: 1,
})

describe.each(ENGINES)('the counts of a job, on %s', (engine) => {
  let http: TestApp
  let worker: WorkerCalls
  beforeAll(async () => {
    http = await testApp(engine)
    worker = await registeredWorker(http)
  })
  afterAll(() => http.close())

  const submit = (key: string, payload: unknown) =>
    http.call('POST', '/v1/jobs', { headers: { 'idempotency-key': key }, body: { kind: 'work', queue: key, payload } })
  async function leased(queue: string, changes: object = {}) {
    const [lease] = await worker.lease(queue, changes)
    if (lease === undefined) throw new Error('Nothing to lease')
    return lease
  }
  const once = async (id: string) => ((await http.call('GET', `/v1/jobs/${id}`)).body as JobDetail).once
  const stored = (id: string) =>
    sql(http.services.deps.store, 'SELECT * FROM ichido.once_counters WHERE job_id = $1', id)

  test('include repeats, conflicts and late writes, before and after a flush', async () => {
    const key = v7()
    const { job_id: id } = (await submit(key, 1)).body as { job_id: string }
    expect(await once(id)).toEqual(NONE)
    expect(http.services.evidence.total([], id)).toEqual({
      duplicatesRefused: 0,
      replaysServed: 0,
      staleWritesFenced: 0,
    })
    for (let i = 0; i < 3; i++) expect((await submit(key, 1)).status).toBe(201)
    expect((await submit(key, 2)).status).toBe(409)
    const lease = await leased(key, { start: true, start_id: 'mine' })
    const at = (verb: string, body: object) => worker.post(`/v1/leases/${lease.lease_id}/${verb}`, body)
    const event = { stage: 'progress', seq: 1, data: 1 }
    for (let i = 0; i < 2; i++) expect((await at('events', { events: [event] })).status).toBe(200)
    expect((await at('start', { start_id: 'other' })).status).toBe(409)
    const other = `${lease.lease_id.split('.')[0]}.stolen`
    expect((await worker.post(`/v1/leases/${other}/heartbeat`)).status).toBe(409)
    expect((await at('logs', { chunks: [{ n: 0, stream: 'stdout', text: 'a' }] })).status).toBe(200)
    for (let i = 0; i < 3; i++) expect((await at('result', { result: 1 })).status).toBe(200)
    expect((await at('result', { result: 2 })).status).toBe(409)
    expect((await at('logs', { chunks: [{ n: 1, stream: 'stdout', text: 'b' }] })).status).toBe(409)
    const counted = { ...NONE, duplicates_refused: 3, replays_served: 5, stale_writes_fenced: 3 }
    expect(await once(id)).toEqual(counted)
    expect(await stored(id)).toEqual([])
    await http.services.evidence.flush()
    expect(await stored(id)).toHaveLength(1)
    expect(await once(id)).toEqual(counted)
    await submit(key, 1)
    expect(await once(id)).toMatchObject({ replays_served: 6 })
    await http.services.evidence.flush()
    expect(await once(id)).toMatchObject({ replays_served: 6 })
    expect(await stored(id)).toHaveLength(1)
  })

  test('include reassignments, from its runs', async () => {
    const queue = v7()
    const { job_id: id } = (await http.call('POST', '/v1/jobs', { body: { kind: 'work', queue } })).body as JobDetail
    for (let i = 0; i < 3; i++) {
      const lease = await leased(queue)
      await worker.post(`/v1/leases/${lease.lease_id}/release`)
    }
    await leased(queue)
    expect(await once(id)).toMatchObject({ reassignments: 3 })
  })

  test('ignore unknown ids', async () => {
    const { evidence } = http.services
    evidence.count(v7(), 'replaysServed')
    await evidence.flush()
    expect(
      await sql(
        http.services.deps.store,
        'SELECT job_id FROM ichido.once_counters c WHERE NOT EXISTS (SELECT 1 FROM ichido.jobs j WHERE j.id = c.job_id)',
      ),
    ).toEqual([])
  })
})

describe('many counts', () => {
  /** A store that records its commands, and fails when told to. */
  function askedStore() {
    const asked: Command<unknown>[] = []
    const real = openSqlite({ now: realWorld.now })
    onTestFinished(() => real.close())
    const given = { fails: false }
    const store: Store = {
      ...real,
      async write(command) {
        asked.push(command)
        if (given.fails) throw new Error('out')
        return real.write(command)
      },
    }
    return { store, asked, given }
  }
  const evidenceOn = (store: Store, lost: number[], batchMax = 1_000): PromiseCounters =>
    createPromiseCounters({
      world: realWorld,
      store,
      settings: settingsOf({ evidence_batch_max: batchMax }),
      meter: { ...silentMeter, evidenceLost: (jobs) => void lost.push(jobs) },
    })

  test('are written early, and their number is bounded', async () => {
    const { store, asked, given } = askedStore()
    const lost: number[] = []
    const evidence = evidenceOn(store, lost)
    for (let i = 0; i < 9_999; i++) evidence.count(`job-${i}`, 'replaysServed')
    expect(asked).toHaveLength(0)
    evidence.count('job-9999', 'replaysServed')
    expect(asked).toHaveLength(1)
    await evidence.flush()
    given.fails = true
    for (let i = 10_000; i < 40_000; i++) evidence.count(`job-${i}`, 'replaysServed')
    expect(lost.reduce((sum, n) => sum + n, 0)).toBeGreaterThan(0)
    await evidence.close()
    expect(lost.at(-1)).toBeLessThanOrEqual(21_000)
  })

  test('a failed batch is retried unchanged, and later counts follow', async () => {
    const { store, asked, given } = askedStore()
    const evidence = evidenceOn(store, [], 2)
    for (const id of ['a', 'b', 'c']) evidence.count(id, 'staleWritesFenced')
    given.fails = true
    await expect(evidence.flush()).rejects.toThrow('out')
    given.fails = false
    evidence.count('a', 'staleWritesFenced')
    expect(evidence.total([], 'a')).toMatchObject({ staleWritesFenced: 2 })
    await evidence.close()
    const row = (id: string, batchN: number) => [id, expect.any(String), batchN, 0, 0, 1]
    expect(asked.map(({ work }) => work(false).next().value)).toMatchObject([
      { rows: [row('a', 1), row('b', 1)] },
      { rows: [row('a', 1), row('b', 1)] },
      { rows: [row('a', 2), row('c', 2)] },
    ])
  })
})

describe('two nodes', () => {
  const nodes = twoNodes()

  test('count the same jobs without loss or double counts', async () => {
    const scene = new Scene(nodes.a())
    const items = Array.from({ length: 20 }, () => scene.item())
    await scene.submitAll(items)
    const ids = items.map(({ jobId }) => jobId)
    const batches = size(20, 200)
    const node = async (store: Store) => {
      const nodeId = v7()
      for (let batchN = 1; batchN <= batches; batchN++) {
        const counts = new Map(ids.toSorted(() => Math.random() - 0.5).map((id) => [id, one('replaysServed')]))
        const add = addCounts({ nodeId, batchN, counts })
        await store.write(add)
        // As after a COMMIT whose answer got lost.
        await store.write(add)
      }
    }
    await Promise.all([node(nodes.a()), node(nodes.b()), node(nodes.b())])
    const rows = await sql(
      nodes.a(),
      'SELECT job_id, CAST(sum(replays_served) AS bigint) AS sum FROM ichido.once_counters GROUP BY job_id',
    )
    expect(rows).toHaveLength(20)
    for (const row of rows) expect(row.sum).toBe(3 * batches)
  })
})

const DAY_MS = 86_400_000

/** The sums over all minutes and nodes. */
async function sums(store: Store): Promise<Record<string, number>> {
  const totals: Record<string, number> = {}
  for (const { name, count } of (await store.read(findMinuteCounts(DAY_MS))).sums) {
    totals[name] = (totals[name] ?? 0) + count
  }
  return totals
}

describe.each(ENGINES)('%s', (engine) => {
  let opened: TestStore
  beforeAll(async () => {
    opened = await testStore(engine)
  })
  beforeEach(() => sql(opened.store, 'DELETE FROM ichido.minute_counts'))
  afterAll(() => opened.close())

  /** The write succeeds, and its answer is lost. */
  function unheard(): { store: Store; lose: { next: boolean } } {
    const lose = { next: false }
    const { store: real } = opened
    const store: Store = {
      ...real,
      engine: real.engine,
      read: (command) => real.read(command),
      async write(command) {
        const answer = await real.write(command)
        if (!lose.next) return answer
        lose.next = false
        throw new Error('the connection broke')
      },
    }
    return { store, lose }
  }

  test('counts are written once, also after a commit without an answer', async () => {
    const { store, lose } = unheard()
    const counts = createMinuteCounts({ world: realWorld, store })
    counts.add('runs_started', 2)
    counts.add('start_delay_ms', 700)
    lose.next = true
    await expect(counts.flush()).rejects.toThrow('the connection broke')
    counts.add('runs_started', 3)
    await counts.flush()
    await counts.flush()
    await counts.flush()
    expect(await sums(opened.store)).toEqual({ runs_started: 5, start_delay_ms: 700 })
  })

  test('a node that stops writes the rest, or stops without a store', async () => {
    const { store, lose } = unheard()
    const counts = createMinuteCounts({ world: realWorld, store })
    counts.add('keyed_submits', 4)
    lose.next = true
    await counts.flush().catch(() => {})
    counts.add('keyed_submits', 1)
    await counts.close()
    expect(await sums(opened.store)).toEqual({ keyed_submits: 5 })
    const away = createMinuteCounts({
      world: realWorld,
      store: { ...store, read: () => Promise.reject(new Error('away')) },
    })
    away.add('keyed_submits', 1)
    await away.close()
    expect(await sums(opened.store)).toEqual({ keyed_submits: 5 })
  })

  test('nothing is written without counts', async () => {
    const counts = createMinuteCounts({ world: realWorld, store: opened.store })
    await counts.flush()
    await counts.close()
    expect(await sql(opened.store, 'SELECT * FROM ichido.minute_counts')).toEqual([])
  })
})

test('a meter counts keyed submissions, starts and ended retries', () => {
  const added: string[] = []
  const heard: string[] = []
  const other = { ...silentMeter, submitted: () => void heard.push('submitted'), ended: () => void heard.push('ended') }
  const meter = countingByMinute(other, { add: (name, times) => void added.push(`${name} ${times}`) })
  const said = (count: () => void) => {
    count()
    return added.splice(0)
  }
  expect(said(() => meter.submitted('created', false, null, 'q'))).toEqual([])
  expect(said(() => meter.submitted('created', true, null, 'q'))).toEqual(['keyed_submits 1'])
  expect(said(() => meter.submitted('refused', true, 'QUOTA_EXCEEDED', 'q'))).toEqual(['keyed_submits 1'])
  const duplicate = ['keyed_submits 1', 'duplicate_submits 1']
  expect(said(() => meter.submitted('replayed', true, null, 'q'))).toEqual(duplicate)
  expect(said(() => meter.submitted('refused', true, 'IDEMPOTENCY_KEY_REUSED', 'q'))).toEqual(duplicate)
  expect(said(() => meter.started(40, 'q', 'k'))).toEqual(['runs_started 1', 'start_delay_ms 40'])
  expect(said(() => meter.ended('FAILED', 0, 'q', 'k'))).toEqual([])
  expect(said(() => meter.ended('CANCELED', 2, 'q', 'k'))).toEqual([])
  expect(said(() => meter.ended('SUCCEEDED', 2, 'q', 'k'))).toEqual(['retries_ended 1'])
  for (const state of ['FAILED', 'TIMED_OUT']) {
    expect(said(() => meter.ended(state, 1, 'q', 'k'))).toEqual(['retries_ended 1', 'retries_failed 1'])
  }
  expect(heard).toEqual([...Array(5).fill('submitted'), ...Array(5).fill('ended')])
})

describe('two nodes', () => {
  const nodes = twoNodes()

  test('add to one minute without loss or double counts', async () => {
    const batches = size(20, 300)
    const minute = Math.floor(realWorld.now() / 60_000)
    const add = async (store: Store, nodeId: string) => {
      for (let batchN = 1; batchN <= batches; batchN++) {
        const counts = new Map<MinuteCount, number>([
          ['runs_started', 1],
          ['keyed_submits', 2],
        ])
        const batch: MinuteBatch = { minute, nodeId, batchN, counts }
        // The first batch may still be running when it is repeated.
        await Promise.all([store.write(addMinuteCounts(batch)), nodes.a().write(addMinuteCounts(batch))])
      }
    }
    await Promise.all([nodes.a(), nodes.b(), nodes.b()].map((store) => add(store, unique('node'))))
    expect(await sums(nodes.a())).toMatchObject({ runs_started: 3 * batches, keyed_submits: 6 * batches })
  })

  test('a dead letter is counted once, by the transaction that makes it', async () => {
    await sql(nodes.a(), 'DELETE FROM ichido.minute_counts')
    const scene = new Scene(nodes.a())
    const jobs = size(5, 100)
    for (let i = 0; i < jobs; i++) {
      const lease = await scene.running({ policy: { max_attempts: 1 } })
      const end = finishBatch([scene.endItem(lease, failed())])
      const outcomes = await nodes.meet(end, end)
      expect(
        outcomes
          .flat()
          .map(({ kind }) => kind)
          .sort(),
      ).toEqual(['recorded', 'repeated'])
    }
    const survivor = await scene.running({ policy: { max_attempts: 2 } })
    await scene.fail(survivor)
    expect(await sums(nodes.a())).toEqual({ dead_letters: jobs })
  })

  test('many dead letters on both nodes are counted without loss', async () => {
    await sql(nodes.a(), 'DELETE FROM ichido.minute_counts')
    const scene = new Scene(nodes.a())
    const leases: Leased[] = []
    for (let i = 0; i < size(30, 300); i++) leases.push(await scene.running({ policy: { max_attempts: 1 } }))
    const end = (lease: Leased, i: number) =>
      (i % 2 === 0 ? nodes.a() : nodes.b()).write(finishBatch([scene.endItem(lease, failed())]))
    await Promise.all(leases.map(end))
    expect(await sums(nodes.a())).toEqual({ dead_letters: leases.length })
  })
})
