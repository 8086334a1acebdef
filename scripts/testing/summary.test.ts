import { expect, type TestContext, test, vi } from 'vitest'
import { missStrace } from './strace.ts'
import { type FileResult, summarize, tally } from './summary.ts'

const STEPS = [
  { title: 'Types', ok: true, ms: 15_500 },
  { title: 'Tests', ok: false, ms: 250_000 },
]
const file = (path: string, ms: number, failures: string[] = []): FileResult => ({
  path,
  ms,
  failed: failures.length > 0,
  failures,
})

test('the summary shows steps, slow files, failures and how to run those again', () => {
  const files = [file('a.test.ts', 1_200), file('b.test.ts', 61_000, ['b > is right']), file('c.test.ts', 90)]
  const lines = summarize(STEPS, { passed: 7, failed: 1, unable: { 'no strace': 2 }, files })
  expect(`${lines.join('\n')}\n`).toBe(`
Steps
  Types  ok       15.5 s
  Tests  FAILED  250.0 s

Slowest of 3 files
    61.0 s  b.test.ts
     1.2 s  a.test.ts

Could not run here
  2 tests: no strace

Failed
  b.test.ts
    b > is right

Run the failed files again
  npm test -- b.test.ts

7 passed, 1 failed
`)
})

test('a file that fails outside its tests is among those to run again', () => {
  const broken = { ...file('a.test.ts', 5), failed: true }
  const lines = summarize(STEPS, { passed: 0, failed: 1, unable: {}, files: [broken] })
  expect(lines).toContain('  npm test -- a.test.ts')
})

test('the summary of one fast file has only steps and counts', () => {
  const lines = summarize(STEPS.slice(0, 1), { passed: 3, failed: 0, unable: {}, files: [file('a.test.ts', 5_000)] })
  expect(lines).toEqual(['', 'Steps', '  Types  ok       15.5 s', '', '3 passed, 0 failed'])
})

test('passed and failed tests are counted, skipped tests are not', () => {
  const files = [
    { state: 'passed', tests: ['passed', 'skipped'] },
    { state: 'failed', tests: ['passed', 'failed'] },
  ]
  expect(tally(files, 0)).toEqual({ passed: 2, failed: 1, unable: {} })
})

test('a file that fails outside its tests is one failure', () => {
  const files = [
    { state: 'passed', tests: ['passed'] },
    { state: 'failed', tests: [] },
  ]
  expect(tally(files, 0)).toEqual({ passed: 1, failed: 1, unable: {} })
})

test('an error outside of any file is one failure', () => {
  expect(tally([{ state: 'passed', tests: ['passed'] }], 1)).toEqual({ passed: 1, failed: 1, unable: {} })
})

test('tests that this machine cannot run are counted by reason', () => {
  const files = [
    { state: 'passed', tests: ['passed', 'skipped'], lacks: ['no strace'] },
    { state: 'passed', tests: ['skipped', 'skipped'], lacks: ['no strace'] },
  ]
  expect(tally(files, 0)).toEqual({ passed: 1, failed: 0, unable: { 'no strace': 2 } })
})

test('without strace a test is skipped with a note, and fails in CI unless allowed', () => {
  const said: unknown[] = []
  // As in vitest, skipping ends the test.
  const skip: TestContext['skip'] = (note?: boolean | string) => {
    said.push(note)
    throw new Error('skipped')
  }
  vi.stubEnv('CI', '')
  expect(() => missStrace({ skip })).toThrow('skipped')
  vi.stubEnv('CI', 'true')
  vi.stubEnv('ICHIDO_NO_STRACE', '')
  expect(() => missStrace({ skip })).toThrow('ICHIDO_NO_STRACE=1')
  vi.stubEnv('ICHIDO_NO_STRACE', '1')
  expect(() => missStrace({ skip })).toThrow('skipped')
  vi.unstubAllEnvs()
  expect(said).toEqual(['no strace', 'no strace'])
})
