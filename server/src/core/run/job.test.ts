import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import {
  DEFAULT_BACKOFF,
  hasRetriesLeft,
  parsePolicy,
  RUN_AT_GRACE_MS,
  RUN_AT_MAX_AHEAD_MS,
  retryDelayMs,
  runAtProblem,
} from './job.ts'

test('by default a job is tried four times', () => {
  expect([0, 1, 2, 3, 4, 5].map((failed) => hasRetriesLeft({}, failed))).toEqual([true, true, true, true, false, false])
})

test('max_attempts runs may start and fail, and no more', () => {
  fc.assert(
    fc.property(fc.integer({ min: 1, max: 100 }), (max_attempts) => {
      expect(hasRetriesLeft({ max_attempts }, max_attempts - 1)).toBe(true)
      expect(hasRetriesLeft({ max_attempts }, max_attempts)).toBe(false)
    }),
  )
})

describe('a stored policy', () => {
  test.each([
    {},
    { max_attempts: 1, backoff: { baseSeconds: 1, capSeconds: 2, jitter: 0 }, stages: 'eco2', seq_scope: 'job' },
    { timeout_seconds: null, of_a_later_version: [] },
  ])('is read as it is: %j', (policy) => {
    expect(parsePolicy(policy)).toBe(policy)
  })

  test.each([null, 'x', { max_attempts: '1' }, { backoff: { baseSeconds: 1 } }, { stages: 'other' }])(
    'is refused when it is malformed: %j',
    (policy) => {
      expect(() => parsePolicy(policy)).toThrow('A stored policy is malformed')
    },
  )
})

describe('run_at', () => {
  const nowMs = Date.UTC(2026, 0, 1)

  test.each([0, -RUN_AT_GRACE_MS, 1, RUN_AT_MAX_AHEAD_MS])('now%+i ms is accepted', (offsetMs) => {
    expect(runAtProblem(nowMs + offsetMs, nowMs)).toBeNull()
  })

  test.each([
    [nowMs - RUN_AT_GRACE_MS - 1, 'run_at is in the past'],
    [0, 'run_at is in the past'],
    [Number.NEGATIVE_INFINITY, 'run_at is in the past'],
    [nowMs + RUN_AT_MAX_AHEAD_MS + 1, 'run_at is more than 366 days ahead'],
    [Date.UTC(9999, 11, 31), 'run_at is more than 366 days ahead'],
    [Number.NaN, 'run_at is not an instant'],
  ])('%d is refused', (runAtMs, problem) => {
    expect(runAtProblem(runAtMs, nowMs)).toBe(problem)
  })
})

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

test('the default jitter subtracts at most a tenth', () => {
  expect(retryDelayMs(DEFAULT_BACKOFF, 0, 0.999_999)).toBe(9_000)
})

test('jitter stays inside the cap and subtracts at most its share', () => {
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
