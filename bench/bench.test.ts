import { describe, expect, test } from 'vitest'
import { EVERY_JOB, listJobs } from '../server/src/store/jobs/list-jobs.ts'
import { findJob } from '../server/src/store/jobs/read-jobs.ts'
import { command, type Store } from '../server/src/store/port.ts'
import { queryText } from '../server/src/store/statement.ts'
import { testStore } from '../server/src/testing/store/store.ts'
import { fill, filledIdOf, filledKeyOf, fillWithoutIndexes, kindOf, queueOf, teamOf, userOf } from './fill.ts'
import { flow, interleave, median, quantile } from './measure.ts'
import { amount, type Comparison, judge, table } from './report.ts'

const comparison: Comparison = {
  what: 'submit',
  unit: '/s',
  ours: [900, 16_000, 17_000],
  against: 'pg-boss send()',
  theirs: [2_000, 1_000, 9_000],
  target: { least: 8 },
}

describe('statistics', () => {
  test('a quantile lies between the two values around it', () => {
    expect(quantile([30, 10, 20], 0.5)).toBe(20)
    expect(median([4, 1, 3, 2])).toBe(2.5)
    expect(quantile([0, 10], 0.99)).toBeCloseTo(9.9)
    expect(quantile([7], 0.5)).toBe(7)
  })

  test('the median of no values throws an error', () => {
    expect(() => median([])).toThrow(RangeError)
  })

  test('rounds take turns, and warm-up rounds are not kept', async () => {
    let calls = 0
    const one = async () => calls++
    const found = await interleave({ warmUps: 1, rounds: 3 }, { peer: one, ours: one })
    expect(found).toEqual({ peer: [2, 4, 6], ours: [3, 5, 7] })
  })

  test('flow() keeps one call per caller running and uses each number once', async () => {
    const seen = new Set<number>()
    let underWay = 0
    let most = 0
    const { calls } = await flow({ callers: 4, durationMs: 20 }, async (n) => {
      expect(seen.has(n)).toBe(false)
      seen.add(n)
      most = Math.max(most, ++underWay)
      await new Promise((resolve) => setImmediate(resolve))
      underWay--
    })
    expect(most).toBe(4)
    expect(seen.size).toBe(calls)
  })
})

describe('verdicts', () => {
  test('medians are compared, not single rounds', () => {
    expect(judge(comparison)).toMatchObject({ oursMedian: 16_000, theirsMedian: 2_000, ratio: 8, met: true })
  })

  test('a target is a minimum, a maximum, or none', () => {
    expect(judge({ ...comparison, target: { least: 8.01 } }).met).toBe(false)
    expect(judge({ ...comparison, unit: 'ms', target: { most: 8 } }).met).toBe(true)
    expect(judge({ ...comparison, unit: 'ms', target: { most: 7.99 } }).met).toBe(false)
    expect(judge({ ...comparison, target: null }).met).toBe(true)
  })

  test('the table shows which targets were met and missed', () => {
    const lines = table([judge(comparison), judge({ ...comparison, what: 'list', target: { least: 9 } })]).split('\n')
    expect(lines[1]).toMatch(/^submit +16,000\/s {2}pg-boss send\(\) +2,000\/s +8\.00 × +≥ 8 {2}met$/)
    expect(lines[2]).toMatch(/^list .* ≥ 9 {2}MISSED$/)
    expect(amount(0.1234, 'ms')).toBe('0.12 ms')
    expect(amount(12.34, 'ms')).toBe('12.3 ms')
  })
})

describe('jobs made by SQL', () => {
  const COUNT = 300

  async function look(store: Store, how: typeof fill): Promise<void> {
    const filling = { count: COUNT, nowMs: Date.now() }
    await store.write(how(filling))
    for (const n of [1, 120, COUNT]) {
      const found = await store.read(findJob(filledIdOf(filling, n)))
      expect(found?.key).toBe(filledKeyOf(n))
      expect(found?.job).toMatchObject({ queue: queueOf(n), kind: kindOf(n), user_id: userOf(n) })
    }
    const label = { name: 'team', value: teamOf(COUNT) }
    const { rows } = await store.read(listJobs({ ...EVERY_JOB, label }, 10, null))
    expect(rows.map((row) => row.job_id)).toEqual([filledIdOf(filling, COUNT), filledIdOf(filling, COUNT - 200)])
  }

  test('filled jobs have their ids, keys and labels on SQLite', async () => {
    const { store, close } = await testStore('sqlite')
    await look(store, fill)
    await close()
  })

  test('filled jobs have their ids, keys and labels on PostgreSQL, with all indexes', async () => {
    const { store, close } = await testStore('postgres')
    const before = await store.read(indexes)
    await look(store, fillWithoutIndexes)
    expect(await store.read(indexes)).toEqual(before)
    await close()
  })
})

const indexes = command('indexes', () =>
  queryText("SELECT indexdef FROM pg_indexes WHERE schemaname = 'ichido' ORDER BY indexdef"),
)
