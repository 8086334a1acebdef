import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { admit, MICROS, money, periodStartMs, type Quota, toMicros } from './quota.ts'

const NONE: Quota = { maxConcurrent: null, costLimitMicros: null, period: 'month' }
const slots = (maxConcurrent: number): Quota => ({ ...NONE, maxConcurrent })
const costs = (limit: number): Quota => ({ ...NONE, costLimitMicros: toMicros(limit) })
const usage = (inUse: number, spent = 0) => ({ inUse, spentMicros: toMicros(spent) })

describe('concurrent jobs', () => {
  test('in any order of jobs the limit is never exceeded', () => {
    const asked = fc.array(fc.constantFrom('submit', 'end'), { maxLength: 200 })
    fc.assert(
      fc.property(fc.nat({ max: 20 }), asked, (max, steps) => {
        let inUse = 0
        for (const step of steps) {
          if (step === 'end') inUse = Math.max(0, inUse - 1)
          else if (admit(slots(max), usage(inUse), 1, 0).ok) inUse++
          expect(inUse).toBeLessThanOrEqual(max)
        }
      }),
    )
  })

  test('jobs are admitted up to the limit, and then refused', () => {
    fc.assert(
      fc.property(fc.nat({ max: 1_000 }), fc.nat({ max: 1_000 }), (max, inUse) => {
        expect(admit(slots(max), usage(inUse), 1, 0).ok).toBe(inUse < max)
      }),
    )
  })

  test('the refusal has the words of the seed', () => {
    expect(admit(slots(5), usage(5), 1, 0)).toEqual({
      ok: false,
      code: 'QUOTA_EXCEEDED',
      message: 'Quota exceeded: Maximum 5 concurrent jobs allowed',
    })
  })

  test('a job with its own reservation takes no slot, even after the limit was lowered', () => {
    expect(admit(slots(5), usage(5), 0, 0).ok).toBe(true)
    expect(admit(slots(2), usage(5), 0, 0).ok).toBe(true)
  })

  test('warnings begin at 80 %, including the admitted job', () => {
    fc.assert(
      fc.property(fc.integer({ min: 1, max: 100_000 }), fc.nat({ max: 100_000 }), (max, before) => {
        fc.pre(before < max)
        const admission = admit(slots(max), usage(before), 1, 0)
        const expected = (before + 1) * 5 >= max * 4 ? [`${before + 1} of ${max} concurrent jobs in use`] : []
        expect(admission).toEqual({ ok: true, quotaWarnings: expected, costLimitWarning: null })
      }),
    )
  })

  test('without a limit nothing is refused, and there are no warnings', () => {
    fc.assert(
      fc.property(fc.nat(), fc.nat(), (inUse, cost) => {
        expect(admit(NONE, usage(inUse, cost), 1, cost)).toEqual({
          ok: true,
          quotaWarnings: [],
          costLimitWarning: null,
        })
      }),
    )
  })
})

describe('cost limits', () => {
  const micros = fc.integer({ min: 0, max: 1_000_000 * MICROS })

  test('the sum of admitted costs never exceeds the limit', () => {
    fc.assert(
      fc.property(micros, fc.array(micros, { maxLength: 50 }), (limit, jobs) => {
        let spentMicros = 0
        for (const cost of jobs) {
          if (admit({ ...NONE, costLimitMicros: limit }, { inUse: 0, spentMicros }, 1, cost).ok) spentMicros += cost
          expect(spentMicros).toBeLessThanOrEqual(limit)
        }
      }),
    )
  })

  test('a limit can be used up to the last millionth', () => {
    expect(admit(costs(0.3), usage(0, 0.2), 1, toMicros(0.1)).ok).toBe(true)
    expect(admit(costs(0.3), usage(0, 0.2), 1, toMicros(0.100_001)).ok).toBe(false)
  })

  test('a job without cost is admitted even when everything is spent', () => {
    expect(admit(costs(10), usage(0, 12), 1, 0).ok).toBe(true)
  })

  test('the refusal says what is spent, what is allowed and what was asked', () => {
    expect(admit({ ...costs(100), period: 'day' }, usage(0, 99.5), 1, toMicros(0.75))).toEqual({
      ok: false,
      code: 'COST_LIMIT_EXCEEDED',
      message: 'Cost limit exceeded: 99.50 of 100.00 per day is spent, this job would add 0.75',
    })
  })

  test('a full quota is named before a cost limit', () => {
    expect(admit({ ...costs(1), maxConcurrent: 1 }, usage(1, 1), 1, MICROS)).toMatchObject({ code: 'QUOTA_EXCEEDED' })
  })

  test.each([
    [79.99, null],
    [80, '80.00 of 100.00 per month is spent (80 %)'],
    [99.999, '99.999 of 100.00 per month is spent (99 %)'],
    [100, '100.00 of 100.00 per month is spent (100 %)'],
  ])('at %d of 100 the warning is %j', (spent, warning) => {
    expect(admit(costs(100), usage(0), 1, toMicros(spent))).toMatchObject({ costLimitWarning: warning })
  })

  test('a limit of zero is always used up', () => {
    expect(admit(costs(0), usage(0), 1, 0)).toMatchObject({
      ok: true,
      costLimitWarning: '0.00 of 0.00 per month is spent (100 %)',
    })
  })
})

describe('money', () => {
  test.each([
    [0, '0.00'],
    [1, '0.000001'],
    [10_000, '0.01'],
    [123_000, '0.123'],
    [1_500_000, '1.50'],
    [10_000_000, '10.00'],
    [1e15, '1000000000.00'],
    [-2_500_000, '-2.50'],
  ])('%d millionths are written %s', (micros, text) => {
    expect(money(micros)).toBe(text)
  })

  test('amounts are written exactly, with at least two decimals', () => {
    fc.assert(
      fc.property(fc.integer({ min: -1e15, max: 1e15 }), (micros) => {
        expect(money(micros)).toMatch(/^-?\d+\.\d{2,6}$/)
        expect(toMicros(Number(money(micros)))).toBe(micros)
      }),
    )
  })

  test('sums of amounts do not drift', () => {
    expect(toMicros(0.1) + toMicros(0.2)).toBe(toMicros(0.3))
    fc.assert(
      fc.property(fc.double({ min: 0, max: 1e9, noNaN: true }), (amount) => {
        expect(Number.isSafeInteger(toMicros(amount))).toBe(true)
      }),
    )
  })
})

describe('periods', () => {
  test.each([
    ['day', '2026-03-29T23:59:59.999Z', '2026-03-29T00:00:00.000Z'],
    ['day', '2026-03-30T00:00:00.000Z', '2026-03-30T00:00:00.000Z'],
    ['month', '2024-02-29T12:00:00.000Z', '2024-02-01T00:00:00.000Z'],
    ['month', '2025-12-31T23:59:59.999Z', '2025-12-01T00:00:00.000Z'],
  ] as const)('the %s of %s begins at %s', (period, at, start) => {
    expect(new Date(periodStartMs(period, Date.parse(at))).toISOString()).toBe(start)
  })

  test('a period contains its instants, and its start is its own start', () => {
    const instants = fc.integer({ min: 0, max: Date.UTC(2100, 0) })
    fc.assert(
      fc.property(fc.constantFrom('day', 'month'), instants, (period, atMs) => {
        const start = periodStartMs(period, atMs)
        expect(start).toBeLessThanOrEqual(atMs)
        expect(atMs - start).toBeLessThan((period === 'day' ? 1 : 31) * 86_400_000)
        expect(periodStartMs(period, start)).toBe(start)
      }),
    )
  })
})
