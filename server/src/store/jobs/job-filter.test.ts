import fc from 'fast-check'
import { v7 } from 'uuid'
import { expect, test } from 'vitest'
import { idAt } from './job-filter.sql.ts'

const instants = fc.integer({ min: 0, max: Date.UTC(9999, 0) })

test('the smallest id of an instant is after all earlier ids', () => {
  fc.assert(
    fc.property(instants, fc.uint8Array({ minLength: 16, maxLength: 16 }), (ms, random) => {
      expect(idAt(ms) <= v7({ msecs: ms, random, seq: 0 })).toBe(true)
      if (ms > 0)
        expect(v7({ msecs: ms - 1, random: new Uint8Array(16).fill(255), seq: 2 ** 31 - 1 }) < idAt(ms)).toBe(true)
    }),
  )
})

test.each([
  [Number.NEGATIVE_INFINITY, '00000000-0000-7000-8000-000000000000'],
  [-1, '00000000-0000-7000-8000-000000000000'],
  [0, '00000000-0000-7000-8000-000000000000'],
  [Date.UTC(2026, 0, 1), '019b76da-a800-7000-8000-000000000000'],
  [Number.MAX_SAFE_INTEGER, 'ffffffff-ffff-7000-8000-000000000000'],
])('of %d it is %s', (ms, id) => {
  expect(idAt(ms)).toBe(id)
})
