import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { hasRetriesLeft, parsePolicy, RUN_AT_GRACE_MS, RUN_AT_MAX_AHEAD_MS, runAtProblem } from './job.ts'

test('by default a job is tried four times', () => {
  expect([0, 1, 2, 3, 4, 5].map((failed) => hasRetriesLeft({}, failed))).toEqual([true, true, true, true, false, false])
})

test('max_attempts runs may start and fail, and not one more', () => {
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

  test.each([0, -RUN_AT_GRACE_MS, 1, RUN_AT_MAX_AHEAD_MS])('now%+i ms is taken', (offsetMs) => {
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
