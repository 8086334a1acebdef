import { expect, test } from 'vitest'
import { clip } from './text.ts'

test.each([
  ['what fits stays as it is', 'abc', 3, 'abc'],
  ['what is too long says so within its length', 'abcd', 3, 'ab…'],
  ['half of a character is not left behind', 'a\u{1f600}bc', 3, 'a\ufffd…'],
])('%s', (_, text, max, expected) => {
  expect(clip(text, max)).toBe(expected)
})
