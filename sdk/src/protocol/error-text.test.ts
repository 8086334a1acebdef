import { expect, test } from 'vitest'
import { endText, errorText, reasonText } from './error-text.ts'
import type { JobState } from './jobs.ts'

test.each([
  ['EXIT_2', 'The program exited with code 2', 'EXIT_2: The program exited with code 2'],
  ['ENOENT', 'ENOENT: no such file', 'ENOENT: no such file'],
  ['E', 'ENOENT: no such file', 'E: ENOENT: no such file'],
  ['NO_SUCH_IMAGE', 'NO_SUCH_IMAGE', 'NO_SUCH_IMAGE'],
])('%s says %j', (code, message, text) => {
  expect(errorText({ code, message })).toBe(text)
})

const error = (code: string, message = code) => ({ code, message })
test.each<[JobState, ReturnType<typeof error> | null, string | null, string]>([
  ['CANCELED', null, null, 'was canceled'],
  ['CANCELED', error('CANCELED'), null, 'was canceled'],
  ['CANCELED', error('CANCELED', 'The job was canceled'), null, 'was canceled'],
  [
    'CANCELED',
    error('ABORT_ERR', 'Stopped half way'),
    'ABORT_ERR: Stopped half way',
    'was canceled: ABORT_ERR: Stopped half way',
  ],
  ['FAILED', error('FAILED'), null, 'ended FAILED'],
  ['FAILED', error('FAILED', 'No disk'), 'No disk', 'ended FAILED: No disk'],
  ['FAILED', error('DEMO', 'It always fails'), 'DEMO: It always fails', 'ended FAILED: DEMO: It always fails'],
  ['TIMED_OUT', error('WORKER_LOST', 'Gone'), 'WORKER_LOST: Gone', 'ended TIMED_OUT: WORKER_LOST: Gone'],
])('%s with %j says nothing twice', (state, given, reason, end) => {
  expect(reasonText(state, given)).toBe(reason)
  expect(endText(state, given)).toBe(end)
})
