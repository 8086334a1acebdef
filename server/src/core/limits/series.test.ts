import fc from 'fast-check'
import { expect, test } from 'vitest'
import {
  activityOf,
  addFigures,
  bucketOf,
  type Figures,
  percentileMs,
  placeIn,
  RANGES,
  ROLL_UPS,
  SERIES_QUEUES_MAX,
  SERIES_RANGES,
  stepsOf,
  timingName,
  WRITABLE_MINUTES,
} from './series.ts'

const durations = fc.array(fc.oneof(fc.nat(50), fc.nat(1e9), fc.double({ min: 0, max: 5, noNaN: true })), {
  minLength: 1,
  maxLength: 200,
})

function histogram(values: readonly number[]): Figures {
  const figures: Figures = {}
  for (const ms of values) addFigures(figures, { [timingName('wait', ms)]: 1 })
  return figures
}

test('a percentile is in the bucket of the exact value', () => {
  fc.assert(
    fc.property(durations, fc.constantFrom(0.01, 0.5, 0.9, 0.99, 1), (values, rank) => {
      const sorted = values.toSorted((a, b) => a - b)
      const exact = sorted[Math.max(1, Math.ceil(rank * sorted.length)) - 1] ?? Number.NaN
      const found = percentileMs(histogram(values), 'wait', rank)
      expect(bucketOf(found ?? Number.NaN)).toBe(bucketOf(exact))
    }),
  )
})

test('buckets rise with the time, and the last one has no end', () => {
  expect([0, 0.9, 1, 2, 3, 4, Number.NaN].map(bucketOf)).toEqual([0, 0, 1, 3, 4, 5, 0])
  expect(bucketOf(Number.MAX_SAFE_INTEGER)).toBe(bucketOf(2 ** 30))
})

test('there is no percentile without values', () => {
  expect(percentileMs({ submitted: 4, run_3: 1 }, 'wait', 0.5)).toBeNull()
})

test('counts are summed in any order, and gauges keep the worst value', () => {
  const parts = [
    { submitted: 2, ready: 5, workers_online: 3, samples: 1 },
    { submitted: 3, failed: 1 },
    { ready: 2, workers_online: 1, samples: 1, new_count: 7 },
  ]
  const sumOf = (each: readonly Figures[]) => {
    const sum: Figures = {}
    for (const one of each) addFigures(sum, one)
    return sum
  }
  const expected = { submitted: 5, failed: 1, ready: 5, workers_online: 1, samples: 2, new_count: 7 }
  expect(sumOf(parts)).toEqual(expected)
  expect(sumOf(parts.toReversed())).toEqual(expected)
  expect(activityOf(expected)).toBe(6)
})

test('the steps of a range end with the current one, and begin at multiples of their length', () => {
  const minute = 29_000_017
  for (const range of SERIES_RANGES) {
    const { minutes, step } = RANGES[range]
    const steps = stepsOf(range, minute)
    expect(steps).toHaveLength(minutes / step)
    for (const at of steps) expect(at % step).toBe(0)
    const last = steps.at(-1) ?? 0
    expect(last <= minute && minute < last + step).toBe(true)
  }
})

test('no range reads a block that is longer than its step', () => {
  for (let minute = 29_000_000; minute < 29_000_240; minute++) {
    for (const range of SERIES_RANGES) {
      const [from = 0] = stepsOf(range, minute)
      for (const { to, after } of ROLL_UPS) {
        const rolledBefore = Math.floor((minute - after) / to) * to
        if (to > RANGES[range].step) expect(rolledBefore, `${range} and blocks of ${to}`).toBeLessThanOrEqual(from)
      }
    }
  }
})

test('a minute is rolled up only when no node may write it any more', () => {
  expect(WRITABLE_MINUTES).toBeLessThan(ROLL_UPS[0].after)
})

test('queues beyond the maximum share a place', () => {
  const places = new Map<string, number>([
    ['', 0],
    ['*', 0],
  ])
  for (let i = 0; i < SERIES_QUEUES_MAX; i++) places.set(placeIn(places, `q${i}`), i)
  expect(places.size).toBe(SERIES_QUEUES_MAX + 2)
  expect(['', 'q0', 'late'].map((queue) => placeIn(places, queue))).toEqual(['', 'q0', '*'])
})
