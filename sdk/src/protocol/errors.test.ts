import { readFileSync, writeFileSync } from 'node:fs'
import { expect, test } from 'vitest'
import { ERRORS, type ErrorCode, endText, errorText, IchidoError, reasonText } from './errors.ts'
import type { JobState } from './jobs.ts'

const FILE = new URL('../../../docs/errors.md', import.meta.url)
const UPDATE = 'ICHIDO_UPDATE_DOCS=1 npm test sdk/src/protocol/errors.test.ts'
const codes = Object.keys(ERRORS) as ErrorCode[]

function table(): string {
  const rows = codes.map((code) => {
    const { status, retryable, sentence } = ERRORS[code]
    return `| ${status} | \`${code}\` | ${retryable ? 'yes' : 'no'} | ${sentence} |`
  })
  return ['| status | code | retry | meaning |', '| --- | --- | --- | --- |', ...rows].join('\n')
}

test('docs/errors.md lists every error of the table, and nothing else', () => {
  const page = readFileSync(FILE, 'utf8')
  const listed = /\| status \|[\s\S]*?(?=\n\n|$)/
  if (process.env.ICHIDO_UPDATE_DOCS === '1')
    writeFileSync(
      FILE,
      page.replace(listed, () => table()),
    )
  const found = listed.exec(readFileSync(FILE, 'utf8'))?.[0].trimEnd()
  expect(found, `The table of errors has changed. Its page is written anew by: ${UPDATE}`).toBe(table())
})

test.each(codes)('%s has a valid status and a sentence', (code) => {
  const { status, retryable, sentence } = ERRORS[code]
  expect(code).toMatch(/^[A-Z]+(_[A-Z]+)*$/)
  expect(status).toBeGreaterThanOrEqual(400)
  expect(status).toBeLessThan(600)
  expect(sentence).toMatch(/^[A-Z].*\.$/)
  if (status >= 500 || status === 429) expect(retryable).toBe(true)
})

test('only temporary conflicts are retryable', () => {
  const passing = codes.filter((code) => ERRORS[code].status === 409 && ERRORS[code].retryable)
  expect(passing).toEqual(['IDEMPOTENCY_IN_PROGRESS', 'NOT_DUE', 'RESULT_NOT_READY', 'ARTIFACT_NOT_READY'])
})

test('the message of an error is its sentence by default', () => {
  const plain = new IchidoError('NOT_FOUND')
  expect([plain.message, plain.status, plain.retryable, plain.details]).toEqual([
    ERRORS.NOT_FOUND.sentence,
    404,
    false,
    {},
  ])
  const told = new IchidoError('UNAVAILABLE', 'Stopping', { in_seconds: 3 })
  expect([told.name, told.code, told.message, told.details]).toEqual([
    'IchidoError',
    'UNAVAILABLE',
    'Stopping',
    { in_seconds: 3 },
  ])
})

test.each([
  ['EXIT_2', 'The program exited with code 2', 'EXIT_2: The program exited with code 2'],
  ['ENOENT', 'ENOENT: no such file', 'ENOENT: no such file'],
  ['E', 'ENOENT: no such file', 'E: ENOENT: no such file'],
  ['NO_SUCH_IMAGE', 'NO_SUCH_IMAGE', 'NO_SUCH_IMAGE'],
])('the text of %s with the message %j', (code, message, text) => {
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
])('%s with %j repeats nothing', (state, given, reason, end) => {
  expect(reasonText(state, given)).toBe(reason)
  expect(endText(state, given)).toBe(end)
})
