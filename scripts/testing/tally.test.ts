import { expect, type TestContext, test, vi } from 'vitest'
import { missStrace } from './strace.ts'
import { tally } from './tally.ts'

test('passed and failed tests are counted, skipped ones are neither', () => {
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

test('tests that this machine cannot run are counted by what it lacks', () => {
  const files = [
    { state: 'passed', tests: ['passed', 'skipped'], lacks: ['no strace'] },
    { state: 'passed', tests: ['skipped', 'skipped'], lacks: ['no strace'] },
  ]
  expect(tally(files, 0)).toEqual({ passed: 1, failed: 0, unable: { 'no strace': 2 } })
})

test('without strace a test says so where people look, and fails in CI unless it is allowed', () => {
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
