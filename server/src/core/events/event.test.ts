import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { eventRules, SEQ_PER_ATTEMPT, seqProblem, storedSeq } from './event.ts'

describe('the rules of a job', () => {
  test('default: the kind, one open stage, and each attempt counts anew', () => {
    const rules = eventRules('scan', {})
    expect(rules).toMatchObject({ domain: 'scan', seqScope: 'attempt' })
    expect([0, 999_999].map((seq) => seqProblem(rules, 'progress', seq))).toEqual([null, null])
    expect(seqProblem(rules, 'vision', 9)).toBeNull()
    expect(seqProblem(rules, 'vision', 10)).toBe('must be 0 to 9: this job has no stage vision')
  })

  test('eco2: the ranges of the seed, counted once for the job', () => {
    const rules = eventRules('scan', { domain: 'd', stages: 'eco2' })
    expect(rules).toMatchObject({ domain: 'd', seqScope: 'job' })
    expect([10, 19].map((seq) => seqProblem(rules, 'vision', seq))).toEqual([null, null])
    expect(seqProblem(rules, 'vision', 20)).toBe('must be 10 to 19: that is the stage vision')
    expect(seqProblem(rules, 'progress', 10)).toBe('must be 0 to 9: this job has no stage progress')
    expect(eventRules('scan', { stages: 'eco2', seq_scope: 'attempt' }).seqScope).toBe('attempt')
  })

  test('declared stages; property names of objects are not stages', () => {
    const rules = eventRules('scan', { stages: [{ name: '__proto__', from: 100, to: 200 }] })
    expect(seqProblem(rules, '__proto__', 150)).toBeNull()
    expect(seqProblem(rules, 'constructor', 150)).toMatch('must be 0 to 9')
    expect(rules.seqScope).toBe('attempt')
  })
})

describe('storedSeq', () => {
  test('with the scope job the attempt makes no difference', () => {
    fc.assert(
      fc.property(fc.nat(), fc.nat(), (attempt, seq) => {
        expect(storedSeq('job', attempt, seq)).toBe(seq)
      }),
    )
  })

  test('with the scope attempt no two attempts overlap, and later ones are higher', () => {
    const seqs = fc.integer({ min: 0, max: SEQ_PER_ATTEMPT - 1 })
    const attempts = fc.integer({ min: 1, max: 1_000 })
    fc.assert(
      fc.property(attempts, seqs, attempts, seqs, (attemptA, seqA, attemptB, seqB) => {
        const order = Math.sign(attemptA - attemptB) || Math.sign(seqA - seqB)
        const [a, b] = [storedSeq('attempt', attemptA, seqA), storedSeq('attempt', attemptB, seqB)]
        expect(Math.sign(a - b)).toBe(order)
      }),
    )
    expect(storedSeq('attempt', 1, 7)).toBe(7)
    expect(storedSeq('attempt', 3, 7)).toBe(2_000_007)
  })
})
