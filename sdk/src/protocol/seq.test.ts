import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { ECO2_STAGES, nextSeq, OPEN_STAGES, stageRange, UNDECLARED_STAGE } from './seq.ts'

describe('stage ranges', () => {
  test('eco2 has the ranges of the specification', () => {
    expect(Object.entries(ECO2_STAGES).map(([stage, { from, to }]) => [stage, from, to])).toEqual([
      ['vision', 10, 19],
      ['rule', 20, 29],
      ['answer', 30, 39],
      ['reward', 40, 49],
      ['done', 50, 59],
    ])
  })

  test('no ranges overlap, not even that of undeclared stages', () => {
    const taken = [UNDECLARED_STAGE, ...Object.values(ECO2_STAGES)].flatMap(({ from, to }) =>
      Array.from({ length: to - from + 1 }, (_, i) => from + i),
    )
    expect(new Set(taken).size).toBe(taken.length)
  })

  test.each(['queued', '__proto__', 'constructor', 'toString', ''])(
    'the undeclared stage %j may use 0 to 9',
    (stage) => {
      expect(stageRange(ECO2_STAGES, stage)).toEqual({ from: 0, to: 9 })
      expect(nextSeq(ECO2_STAGES, stage, 9)).toBe(9)
      expect(nextSeq(ECO2_STAGES, stage, 10)).toBeNull()
    },
  )
})

test('a job without stages has an open stage; undeclared stages have 0 to 9', () => {
  expect(nextSeq(OPEN_STAGES, 'progress', 999_999)).toBe(999_999)
  expect(nextSeq(OPEN_STAGES, 'progress', 1_000_000)).toBeNull()
  expect(nextSeq(OPEN_STAGES, 'vision', 10)).toBeNull()
})

test('nextSeq adds the number to the base, or is null outside the range', () => {
  expect(nextSeq(ECO2_STAGES, 'vision')).toBe(10)
  fc.assert(
    fc.property(fc.constantFrom(...Object.keys(ECO2_STAGES), 'other'), fc.double(), (stage, sub) => {
      const { from, to } = stageRange(ECO2_STAGES, stage)
      const inside = Number.isInteger(sub) && sub >= 0 && sub <= to - from
      expect(nextSeq(ECO2_STAGES, stage, sub)).toBe(inside ? from + sub : null)
    }),
  )
})
