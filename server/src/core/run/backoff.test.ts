import fc from 'fast-check'
import { expect, test } from 'vitest'
import { DEFAULT_BACKOFF, retryDelayMs } from './backoff.ts'

const backoffs = fc.record({
  baseSeconds: fc.double({ min: 0, max: 31_622_400, noNaN: true }),
  capSeconds: fc.double({ min: 0, max: 31_622_400, noNaN: true }),
  jitter: fc.double({ min: 0, max: 1, noNaN: true }),
})
const randoms = fc.double({ min: 0, max: 1, maxExcluded: true, noNaN: true })
const retries = fc.nat({ max: 10_000 })

test('the default is 10 s, doubled up to 300 s', () => {
  const delays = [0, 1, 2, 3, 4, 5, 6, 99].map((retry) => retryDelayMs(DEFAULT_BACKOFF, retry, 0))
  expect(delays).toEqual([10_000, 20_000, 40_000, 80_000, 160_000, 300_000, 300_000, 300_000])
})

test('the default jitter takes off a tenth at most', () => {
  expect(retryDelayMs(DEFAULT_BACKOFF, 0, 0.999_999)).toBe(9_000)
})

test('jitter stays inside the cap and takes off its share at most', () => {
  fc.assert(
    fc.property(backoffs, retries, randoms, (backoff, retry, random) => {
      const full = retryDelayMs(backoff, retry, 0)
      const delay = retryDelayMs(backoff, retry, random)
      expect(Number.isSafeInteger(delay)).toBe(true)
      expect(delay).toBeLessThanOrEqual(Math.round(backoff.capSeconds * 1000))
      expect(delay).toBeLessThanOrEqual(full)
      expect(delay).toBeGreaterThanOrEqual(Math.floor(full * (1 - backoff.jitter)) - 1)
    }),
  )
})

test('without jitter a later retry never waits less', () => {
  fc.assert(
    fc.property(backoffs, retries, (backoff, retry) => {
      expect(retryDelayMs(backoff, retry + 1, 0)).toBeGreaterThanOrEqual(retryDelayMs(backoff, retry, 0))
    }),
  )
})
