import fc from 'fast-check'
import { v7 } from 'uuid'
import { expect, test } from 'vitest'
import { EVERY_JOB, idAt, isNarrowed, type JobFilter } from './job-filter.sql.ts'

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

test.each<[boolean, string, Partial<JobFilter>]>([
  [false, 'all jobs', {}],
  [false, 'a state', { states: ['FAILED'] }],
  [false, 'a user in a state', { userId: 'ann', states: ['FAILED', 'PENDING'] }],
  [false, 'a queue', { queue: 'media' }],
  [false, 'the successes of a queue', { queue: 'media', states: ['SUCCEEDED'] }],
  [false, 'a queue in a state that few jobs are in', { queue: 'media', states: ['RUNNING', 'ORPHANED'] }],
  [false, 'a key', { key: 'k', queue: 'media', states: ['FAILED'] }],
  [true, 'a queue and a kind', { queue: 'media', kind: 'scale' }],
  [true, 'the failures of a queue', { queue: 'media', states: ['FAILED'] }],
  [true, 'the waiting jobs of a kind', { kind: 'scale', states: ['PENDING'] }],
  [true, 'a label of a user', { label: { name: 'team', value: 'blue' }, userId: 'ann' }],
])('it is %s that one index serves only a part of the filter: %s', (narrowed, _, filter) => {
  expect(isNarrowed({ ...EVERY_JOB, ...filter })).toBe(narrowed)
})
