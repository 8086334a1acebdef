import { afterEach, beforeEach, describe, expect, test } from 'vitest'
import { freshDatabase } from '../../../../scripts/testing/services.ts'
import { SERIES_KEPT_MINUTES } from '../../core/limits/series.ts'
import { createSeriesService } from '../../services/system/series.ts'
import { defaultSettings } from '../../services/system/settings.ts'
import type { Command, Store } from '../../store/port.ts'
import { addSample, putSeriesCounts, rollUp } from '../../store/system/series.ts'
import type { Term } from '../../store/system/term.ts'
import { type LeaderScene, leaderScene } from '../../testing/nodes/leader-scene.ts'
import { seize } from '../../testing/nodes/reaper.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { ENGINES } from '../../testing/services/services.ts'
import { integer } from '../../testing/store/rows.ts'
import { only } from '../../testing/store/scene.ts'
import { openNode, sql } from '../../testing/store/store.ts'
import { createRetain } from './retain.ts'
import { createSample } from './sample.ts'

const MINUTE_MS = 60_000
const HOUR_MS = 60 * MINUTE_MS
const ROLL = { from: 1, to: 15, after: 75 } as const

const minuteOf = async (store: Store) =>
  integer(only(await sql(store, 'SELECT CAST(now_ms() / 60000 AS bigint) AS m')), 'm')
const read = (store: Store, range: '15m' | '1h' | '24h' | '7d', queue: string | null = null) =>
  createSeriesService({ store }).read(range, queue)

async function submittedIn(store: Store, range: '1h' | '24h' | '7d', queue: string | null): Promise<number> {
  const { points } = await read(store, range, queue)
  return points.reduce((sum, { submitted }) => sum + submitted, 0)
}

let nodes = 0

/** A node counts a job in the current minute. */
async function count(store: Store, queue: string): Promise<void> {
  const figures = { submitted: 1, wait_4: 1 }
  const queues = new Map([
    ['', figures],
    [queue, figures],
  ])
  const minute = await minuteOf(store)
  await store.write(putSeriesCounts({ minute, countedBy: `node-${++nodes}`, batchN: 1, queues }))
}

const countRows = async (store: Store, span: number) =>
  integer(only(await sql(store, 'SELECT count(*) AS n FROM ichido.queue_series WHERE span = $1', span)), 'n')

describe.each(ENGINES)('%s', (engine) => {
  let scene: LeaderScene
  beforeEach(async () => {
    scene = await leaderScene(engine)
  })
  afterEach(() => scene.close())
  const sampler = (term: Term) => createSample({ store: scene.store, settings: defaultSettings }, term)

  /** Waits for the middle of a minute, so that no minute ends during a test. */
  async function inTheMiddle(): Promise<void> {
    const ms = integer(only(await sql(scene.store, 'SELECT CAST(now_ms() AS bigint) % 60000 AS ms')), 'ms')
    await scene.pass(MINUTE_MS + 20_000 - ms)
  }

  test('a minute has one sample of the queues that are not empty', async () => {
    await inTheMiddle()
    await scene.submit({ queue: 'a' })
    await scene.submit({ queue: 'a' })
    await scene.submit({ queue: 'b', delay_seconds: 600 })
    const tick = sampler(await seize(scene.store))
    const nextInMs = await tick()
    expect(nextInMs).toBeGreaterThan(0)
    expect(nextInMs).toBeLessThanOrEqual(40_000)
    await scene.submit({ queue: 'a' })
    await tick()
    const last = async (queue: string | null) => (await read(scene.store, '15m', queue)).points.at(-1)
    expect(await last(null)).toMatchObject({ sampled: true, sampled_minutes: 1, ready: 2, delayed: 1, running: 0 })
    expect(await last('a')).toMatchObject({ sampled: true, ready: 2, delayed: 0, workers_online: 0 })
    expect(await last('empty')).toMatchObject({ sampled: true, ready: 0, oldest_waiting_seconds: 0 })
    const { points } = await read(scene.store, '15m')
    expect(points.slice(0, -1).map(({ sampled, ready }) => [sampled, ready])).toEqual(Array(14).fill([false, null]))
    expect(await countRows(scene.store, 1)).toBe(3)
  })

  test('a former leader samples nothing', async () => {
    const before = await seize(scene.store)
    const term = await seize(scene.store)
    await sampler(before)()
    expect(await countRows(scene.store, 1)).toBe(0)
    await sampler(term)()
    expect(await countRows(scene.store, 1)).toBe(1)
  })

  test('leaders change, and no minute is sampled twice; a minute without a leader says so', async () => {
    await inTheMiddle()
    const hasLeader = [true, true, true, false, true, true]
    for (const has of hasLeader) {
      await scene.submit({ queue: 'a' })
      await count(scene.store, 'a')
      // Each minute has another leader, and the one before wakes up again.
      const before = await seize(scene.store)
      const term = await seize(scene.store)
      if (has) {
        await sampler(term)()
        await sampler(before)()
        await sampler(await seize(scene.store))()
      }
      await scene.pass(MINUTE_MS)
    }
    const points = (await read(scene.store, '15m', 'a')).points.slice(-7, -1)
    expect(points.map(({ sampled }) => sampled)).toEqual(hasLeader)
    expect(points.map(({ ready }) => ready)).toEqual([1, 2, 3, null, 5, 6])
    expect(points.map(({ submitted }) => submitted)).toEqual([1, 1, 1, 1, 1, 1])
    expect(points.map(({ sampled_minutes }) => sampled_minutes)).toEqual([1, 1, 1, 0, 1, 1])
  })

  test('rolling up keeps every count, whenever the leader dies, and a second run changes nothing', async () => {
    const { store } = scene
    for (let i = 0; i < 30; i++) {
      await count(store, i % 3 === 0 ? 'a' : 'b')
      if (i % 2 === 0) await sampler(await seize(store))()
      await scene.pass(MINUTE_MS)
    }
    await scene.pass(2 * HOUR_MS)
    const expected = { a: 10, b: 20, all: 30 }
    const found = async (range: '24h' | '7d') => ({
      a: await submittedIn(store, range, 'a'),
      b: await submittedIn(store, range, 'b'),
      all: await submittedIn(store, range, null),
    })
    expect(await found('24h')).toEqual(expected)
    // Each leader takes seven rows and dies, one of them after a commit that it did not hear of.
    for (let more = true; more; ) {
      const term = await seize(store)
      more = (await store.write(rollUp(term, ROLL, 7))) === 7
      expect(await found('24h')).toEqual(expected)
    }
    expect(await countRows(store, 1)).toBe(0)
    const blocks = await countRows(store, 15)
    expect(blocks).toBeGreaterThan(0)
    const rows = await sql(store, 'SELECT * FROM ichido.queue_series ORDER BY queue, at')
    await sampler(await seize(store))()
    expect(await store.write(rollUp(await seize(store), ROLL, 7))).toBe(0)
    expect(await sql(store, 'SELECT * FROM ichido.queue_series WHERE span = 15 ORDER BY queue, at')).toEqual(rows)
    const samples = (await read(store, '24h')).points.reduce((sum, point) => sum + point.sampled_minutes, 0)
    expect(samples).toBe(16)
    await scene.pass(26 * HOUR_MS)
    await sampler(await seize(store))()
    expect(await countRows(store, 120)).toBeGreaterThan(0)
    expect(await found('7d')).toEqual(expected)
    const waits = (await read(store, '7d')).points.flatMap(({ wait_ms }) => wait_ms.p99 ?? [])
    expect(waits.length).toBeGreaterThan(0)
  })

  test('a former leader rolls nothing up', async () => {
    const { store } = scene
    await count(store, 'a')
    await scene.pass(3 * HOUR_MS)
    const before = await seize(store)
    const term = await seize(store)
    expect(await store.write(rollUp(before, ROLL, 10))).toBe(0)
    expect(await submittedIn(store, '24h', 'a')).toBe(1)
    expect(await store.write(rollUp(term, ROLL, 10))).toBe(2)
    expect(await submittedIn(store, '24h', 'a')).toBe(1)
  })

  test('a block has at most 200 queues of its own', async () => {
    const { store } = scene
    const minute = await minuteOf(store)
    const figures = { submitted: 1 }
    for (const node of ['x', 'y', 'z']) {
      const names = Array.from({ length: 100 }, (_, i) => [`${node}-${i}`, figures] as const)
      await store.write(putSeriesCounts({ minute, countedBy: node, batchN: 1, queues: new Map(names) }))
    }
    await scene.pass(3 * HOUR_MS)
    const term = await seize(store)
    while ((await store.write(rollUp(term, ROLL, 50))) === 50);
    expect(await countRows(store, 15)).toBe(201)
    expect(await submittedIn(store, '24h', '*')).toBe(100)
  })

  test('the tables stay bounded: old blocks are rolled up and removed', async () => {
    const { store, world, meter } = scene
    await count(store, 'a')
    await scene.pass(30 * HOUR_MS)
    const term = await seize(store)
    await sampler(term)()
    expect([await countRows(store, 1), await countRows(store, 15), await countRows(store, 120)]).toEqual([1, 0, 2])
    const retain = createRetain({ store, world, meter, settings: defaultSettings }, term)
    await retain()
    expect(await countRows(store, 120)).toBe(2)
    await scene.pass(SERIES_KEPT_MINUTES * MINUTE_MS)
    await sampler(term)()
    await retain()
    await scene.pass(3 * HOUR_MS)
    await retain()
    expect(await submittedIn(store, '7d', 'a')).toBe(0)
    const [{ n } = { n: null }] = await sql(store, `SELECT count(*) AS n FROM ichido.queue_series WHERE queue = 'a'`)
    expect(n).toBe(0)
  })
})

describe('two leaders at once', () => {
  const stores = twoNodes()
  beforeEach(() => sql(stores.a(), 'DELETE FROM ichido.queue_series'))
  const sample = (term: Term, ready: number): Command<boolean> =>
    addSample(term, { ready, samples: 1 }, new Map([[`queue-${ready}`, { ready }]]))

  test('sample one minute, and one sample is stored, with all its queues', async () => {
    // Also without a change of the term, one sample counts.
    const term = await seize(stores.a())
    const answers = await stores.meet(sample(term, 1), sample(term, 2))
    const rows = await sql(stores.a(), `SELECT queue, at FROM ichido.queue_series ORDER BY queue`)
    const minutes = new Set(rows.map(({ at }) => at))
    // The clock may have passed a minute between the two.
    if (minutes.size === 1) {
      expect(answers).toEqual([true, false])
      expect(rows.map(({ queue }) => queue)).toEqual(['', 'queue-1'])
    } else expect(rows).toHaveLength(4)
  })

  test('the takeover waits for a roll-up that has begun, and each row counts once', async () => {
    const minute = (await minuteOf(stores.a())) - 200
    for (let i = 0; i < 5; i++) {
      await sql(
        stores.a(),
        `INSERT INTO ichido.queue_series VALUES ('a', $1, 1, 'n', 1, 1, '{"submitted":1}')`,
        minute + i,
      )
    }
    const term = await seize(stores.a())
    const held = await stores.gate()
    const first = stores.a().write(held.hold(rollUp(term, ROLL, 10)))
    await held.reached()
    const second = seize(stores.b()).then((next) => stores.b().write(rollUp(next, ROLL, 10)))
    await held.someoneWaits()
    await held.open()
    expect(await Promise.all([first, second])).toEqual([5, 0])
    expect(await submittedIn(stores.b(), '24h', 'a')).toBe(5)
  })
})

test('the series survive a restart', async () => {
  const database = await freshDatabase()
  const before = await openNode(database.url)
  await count(before, 'a')
  await createSample({ store: before, settings: defaultSettings }, await seize(before))()
  const series = (await read(before, '1h', 'a')).points.filter(({ submitted, sampled }) => submitted > 0 || sampled)
  await before.close()
  const after = await openNode(database.url)
  const found = (await read(after, '1h', 'a')).points.filter(({ submitted, sampled }) => submitted > 0 || sampled)
  expect(found.map(({ at, submitted, ready }) => [at, submitted, ready])).toEqual(
    series.map(({ at, submitted, ready }) => [at, submitted, ready]),
  )
  expect(series.length).toBeGreaterThan(0)
  await after.close()
  await database.leave()
})
