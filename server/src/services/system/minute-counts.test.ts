import { afterAll, beforeAll, beforeEach, describe, expect, test } from 'vitest'
import { size } from '../../../../scripts/testing/size.ts'
import type { MinuteCount } from '../../core/limits/minute-counts.ts'
import { realWorld } from '../../node/world.ts'
import type { Leased } from '../../store/leasing/lease-runs.ts'
import type { Store } from '../../store/port.ts'
import { finishBatch } from '../../store/runs/finish-runs.ts'
import { addMinuteCounts, findMinuteCounts, type MinuteBatch } from '../../store/system/minute-counts.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { failed, Scene } from '../../testing/store/scene.ts'
import { sql, type TestStore, testStore, unique } from '../../testing/store/store.ts'
import { silentMeter } from './meter.ts'
import { countingByMinute, createMinuteCounts } from './minute-counts.ts'

const DAY_MS = 86_400_000

/** Over all minutes and nodes. */
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

  /** As after a COMMIT whose answer got lost: the write has happened, and fails. */
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

  test('what is counted is written once, also when a commit was not heard of', async () => {
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

  test('a node that stops writes what is left, and one without a store stops all the same', async () => {
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

  test('nothing is written while nothing is counted', async () => {
    const counts = createMinuteCounts({ world: realWorld, store: opened.store })
    await counts.flush()
    await counts.close()
    expect(await sql(opened.store, 'SELECT * FROM ichido.minute_counts')).toEqual([])
  })
})

test('a meter counts keyed submissions, starts and ended retries, and tells the other', () => {
  const added: string[] = []
  const heard: string[] = []
  const other = { ...silentMeter, submitted: () => void heard.push('submitted'), ended: () => void heard.push('ended') }
  const meter = countingByMinute(other, { add: (name, times) => void added.push(`${name} ${times}`) })
  const said = (count: () => void) => {
    count()
    return added.splice(0)
  }
  expect(said(() => meter.submitted('created', false, null))).toEqual([])
  expect(said(() => meter.submitted('created', true, null))).toEqual(['keyed_submits 1'])
  expect(said(() => meter.submitted('refused', true, 'QUOTA_EXCEEDED'))).toEqual(['keyed_submits 1'])
  const duplicate = ['keyed_submits 1', 'duplicate_submits 1']
  expect(said(() => meter.submitted('replayed', true, null))).toEqual(duplicate)
  expect(said(() => meter.submitted('refused', true, 'IDEMPOTENCY_KEY_REUSED'))).toEqual(duplicate)
  expect(said(() => meter.started(40))).toEqual(['runs_started 1', 'start_delay_ms 40'])
  expect(said(() => meter.ended('FAILED'))).toEqual([])
  expect(said(() => meter.ended('CANCELED', 2))).toEqual([])
  expect(said(() => meter.ended('SUCCEEDED', 2))).toEqual(['retries_ended 1'])
  for (const state of ['FAILED', 'TIMED_OUT']) {
    expect(said(() => meter.ended(state, 1))).toEqual(['retries_ended 1', 'retries_failed 1'])
  }
  expect(heard).toEqual([...Array(5).fill('submitted'), ...Array(5).fill('ended')])
})

describe('two nodes', () => {
  const nodes = twoNodes()

  test('add to one minute at once, every batch twice: nothing is lost or doubled', async () => {
    const batches = size(20, 300)
    const minute = Math.floor(realWorld.now() / 60_000)
    const add = async (store: Store, nodeId: string) => {
      for (let batchN = 1; batchN <= batches; batchN++) {
        const counts = new Map<MinuteCount, number>([
          ['runs_started', 1],
          ['keyed_submits', 2],
        ])
        const batch: MinuteBatch = { minute, nodeId, batchN, counts }
        // The first may still be under way when it comes again.
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

  test('many dead letters on both nodes wait for each other, and none is lost', async () => {
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
