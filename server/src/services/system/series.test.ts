import { beforeEach, describe, expect, test } from 'vitest'
import { SERIES_QUEUES_MAX } from '../../core/limits/series.ts'
import { realWorld } from '../../node/world.ts'
import type { Store } from '../../store/port.ts'
import { findSeries, putSeriesCounts } from '../../store/system/series.ts'
import { twoNodes } from '../../testing/nodes/two-nodes.ts'
import { integer } from '../../testing/store/rows.ts'
import { only } from '../../testing/store/scene.ts'
import { eachEngine, sql, unique } from '../../testing/store/store.ts'
import { silentMeter } from './meter.ts'
import { countingBySeries, createSeriesCounts, createSeriesService } from './series.ts'

const thisMinute = async (store: Store) =>
  integer(only(await sql(store, 'SELECT CAST(now_ms() / 60000 AS bigint) AS m')), 'm')

/** The sums of a queue over the last hour. */
async function sums(store: Store, queue: string | null): Promise<Record<string, number>> {
  const { points } = await createSeriesService({ store }).read('1h', queue)
  const names = ['submitted', 'started', 'succeeded', 'failed', 'key_hits', 'cost'] as const
  return Object.fromEntries(names.map((name) => [name, points.reduce((sum, point) => sum + point[name], 0)]))
}

const NONE = { submitted: 0, started: 0, succeeded: 0, failed: 0, key_hits: 0, cost: 0 }

eachEngine(({ store }) => {
  beforeEach(() => sql(store(), 'DELETE FROM ichido.queue_series'))
  const countsOn = (on: Store) => createSeriesCounts({ world: realWorld, store: on })

  /** The write succeeds, and its answer is lost. */
  function unheard(): { on: Store; lose: { next: boolean } } {
    const lose = { next: false }
    const real = store()
    const on: Store = {
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
    return { on, lose }
  }

  test('counts are written once, also after a commit without an answer', async () => {
    const { on, lose } = unheard()
    const counts = countsOn(on)
    counts.add('a', 'submitted', 2)
    counts.add('b', 'submitted')
    lose.next = true
    await expect(counts.flush()).rejects.toThrow('the connection broke')
    counts.add('a', 'submitted', 3)
    await counts.flush()
    await counts.flush()
    counts.add('a', 'failed')
    await counts.flush()
    expect(await sums(store(), 'a')).toEqual({ ...NONE, submitted: 5, failed: 1 })
    expect(await sums(store(), 'b')).toEqual({ ...NONE, submitted: 1 })
    expect(await sums(store(), null)).toEqual({ ...NONE, submitted: 6, failed: 1 })
  })

  test('an older batch that arrives late undoes nothing', async () => {
    const [countedBy, minute] = [unique('node'), await thisMinute(store())]
    const batch = (batchN: number, submitted: number) =>
      store().write(putSeriesCounts({ minute, countedBy, batchN, queues: new Map([['a', { submitted }]]) }))
    await batch(2, 7)
    await batch(1, 3)
    await batch(2, 7)
    expect(await sums(store(), 'a')).toEqual({ ...NONE, submitted: 7 })
  })

  test('a batch of a minute that may be rolled up changes nothing', async () => {
    const minute = (await thisMinute(store())) - 61
    await store().write(
      putSeriesCounts({ minute, countedBy: 'n', batchN: 1, queues: new Map([['a', { submitted: 1 }]]) }),
    )
    expect(await sql(store(), 'SELECT * FROM ichido.queue_series')).toEqual([])
  })

  test('a restarted node adds to what it counted before', async () => {
    const first = countsOn(store())
    first.add('a', 'started', 4)
    await first.close()
    const second = countsOn(store())
    second.add('a', 'started', 5)
    await second.close()
    expect(await sums(store(), 'a')).toEqual({ ...NONE, started: 9 })
  })

  test('nothing is written without counts', async () => {
    const counts = countsOn(store())
    await counts.flush()
    await counts.close()
    expect(await sql(store(), 'SELECT * FROM ichido.queue_series')).toEqual([])
  })

  test('queues beyond the maximum are counted together', async () => {
    const counts = countsOn(store())
    for (let i = 0; i < SERIES_QUEUES_MAX + 50; i++) {
      counts.add(`queue-${i}`, 'submitted')
      if (i % 90 === 0) await counts.flush()
    }
    await counts.close()
    expect(await sums(store(), null)).toEqual({ ...NONE, submitted: SERIES_QUEUES_MAX + 50 })
    const [{ n } = { n: 0 }] = await sql(store(), 'SELECT count(DISTINCT queue) AS n FROM ichido.queue_series')
    // A minute may end between two writes; then some of the late queues have rows in the second one.
    expect(n).toBeGreaterThanOrEqual(SERIES_QUEUES_MAX + 1)
    const names = await createSeriesService({ store: store() }).queues('1h')
    expect(names).toHaveLength(SERIES_QUEUES_MAX)
  })

  test('the busiest queue is named first', async () => {
    const counts = countsOn(store())
    counts.add('calm', 'submitted', 1)
    counts.add('busy', 'submitted', 9)
    counts.add('middling', 'succeeded', 5)
    await counts.close()
    expect(await createSeriesService({ store: store() }).queues('15m')).toEqual(['busy', 'middling', 'calm'])
  })

  test('each range has all its points, and the last one has not ended', async () => {
    const service = createSeriesService({ store: store() })
    for (const [range, points, seconds] of [
      ['15m', 15, 60],
      ['1h', 60, 60],
      ['24h', 96, 900],
      ['7d', 84, 7_200],
    ] as const) {
      const series = await service.read(range, 'nothing')
      expect(series).toMatchObject({ range, step_seconds: seconds, queue: 'nothing' })
      expect(series.points).toHaveLength(points)
      expect(series.points.map(({ complete }) => complete)).toEqual([...Array(points - 1).fill(true), false])
      expect(series.points[0]).toMatchObject({ at: series.from, ...NONE, sampled: false, ready: null })
      expect(series.points[0]?.wait_ms).toEqual({ p50: null, p99: null })
      expect(Date.parse(series.to) - Date.parse(series.from)).toBe(points * seconds * 1000)
    }
  })

  test('times become percentiles', async () => {
    const counts = countsOn(store())
    for (let ms = 1; ms <= 1_000; ms++) counts.time('a', 'run', ms)
    await counts.close()
    const { points } = await createSeriesService({ store: store() }).read('15m', 'a')
    const { run_ms: run } = points.find(({ run_ms }) => run_ms.p50 !== null) ?? {}
    expect(run?.p50).toBeGreaterThan(500 / Math.SQRT2)
    expect(run?.p50).toBeLessThan(500 * Math.SQRT2)
    expect(run?.p99).toBeGreaterThan(990 / Math.SQRT2)
    expect(run?.p99).toBeLessThan(990 * Math.SQRT2)
  })
})

test('a meter counts what happened in a queue', () => {
  const said: string[] = []
  const heard: string[] = []
  const other = { ...silentMeter, ended: () => void heard.push('ended'), made: () => void heard.push('made') }
  const meter = countingBySeries(other, {
    add: (queue, name, times = 1) => void said.push(`${queue} ${name} ${times}`),
    time: (queue, timing, ms) => void said.push(`${queue} ${timing} ${ms}`),
  })
  meter.submitted('created', false, null, 'a')
  meter.submitted('replayed', true, null, 'a')
  meter.submitted('refused', true, 'QUOTA_EXCEEDED', 'a')
  meter.made('a')
  meter.started(40, 'a', 'k')
  for (const state of ['SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED']) meter.ended(state, 0, 'b', 'k')
  meter.reported('SUCCEEDED', 70, 'b', 'k', 0)
  meter.reported('SUCCEEDED', 80, 'b', 'k', 1_500_000)
  meter.retried('policy', 'b')
  meter.deadLetterMade('b')
  expect(said).toEqual([
    ...['a submitted 1', 'a key_hits 1', 'a submitted 1', 'a started 1', 'a wait 40'],
    ...['b succeeded 1', 'b failed 1', 'b timed_out 1', 'b canceled 1'],
    ...['b run 70', 'b run 80', 'b cost_micros 1500000', 'b retried 1', 'b dead_lettered 1'],
  ])
  expect(heard).toEqual(['made', ...Array(4).fill('ended')])
})

describe('two nodes', () => {
  const nodes = twoNodes()

  test('count without loss or double counts, and read the same', async () => {
    const count = async (on: Store) => {
      const counts = createSeriesCounts({ world: realWorld, store: on })
      for (let i = 0; i < 20; i++) {
        counts.add('a', 'submitted')
        counts.add(i % 2 === 0 ? 'b' : 'c', 'succeeded', 2)
        await counts.flush()
      }
      await counts.close()
    }
    await Promise.all([count(nodes.a()), count(nodes.b()), count(nodes.b())])
    expect(await sums(nodes.a(), null)).toEqual({ ...NONE, submitted: 60, succeeded: 120 })
    expect(await sums(nodes.b(), null)).toEqual(await sums(nodes.a(), null))
    expect(await sums(nodes.b(), 'b')).toEqual({ ...NONE, succeeded: 60 })
  })

  test('repeat a batch that is not committed yet, and count it once', async () => {
    const [countedBy, minute, queue] = [unique('node'), await thisMinute(nodes.a()), unique('queue')]
    const batch = (batchN: number, submitted: number) =>
      putSeriesCounts({ minute, countedBy, batchN, queues: new Map([[queue, { submitted }]]) })
    await nodes.meet(batch(1, 4), batch(1, 4))
    await nodes.meet(batch(3, 9), batch(2, 6))
    const { own } = await nodes.b().read(findSeries(queue, minute))
    expect(own.map(({ figures }) => figures)).toEqual([{ submitted: 9 }])
  })
})
