import { expect, test } from 'vitest'
import { flow, interleave, median, quantile } from './measure.ts'

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
