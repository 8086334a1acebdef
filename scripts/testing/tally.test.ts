import { expect, test } from 'vitest'
import { tally } from './tally.ts'

test('passed and failed tests are counted, skipped ones are neither', () => {
  const files = [
    { state: 'passed', tests: ['passed', 'skipped'] },
    { state: 'failed', tests: ['passed', 'failed'] },
  ]
  expect(tally(files, 0)).toEqual({ passed: 2, failed: 1 })
})

test('a file that fails outside its tests is one failure', () => {
  const files = [
    { state: 'passed', tests: ['passed'] },
    { state: 'failed', tests: [] },
  ]
  expect(tally(files, 0)).toEqual({ passed: 1, failed: 1 })
})

test('an error outside of any file is one failure', () => {
  expect(tally([{ state: 'passed', tests: ['passed'] }], 1)).toEqual({ passed: 1, failed: 1 })
})
