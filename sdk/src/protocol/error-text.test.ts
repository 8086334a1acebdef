import { expect, test } from 'vitest'
import { errorText } from './error-text.ts'

test.each([
  ['EXIT_2', 'The program exited with code 2', 'EXIT_2: The program exited with code 2'],
  ['ENOENT', 'ENOENT: no such file', 'ENOENT: no such file'],
  ['E', 'ENOENT: no such file', 'E: ENOENT: no such file'],
])('%s says %j', (code, message, text) => {
  expect(errorText({ code, message })).toBe(text)
})
