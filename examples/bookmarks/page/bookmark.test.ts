import { expect, test } from 'vitest'
import { parseBookmark, parsePage } from './bookmark.ts'

test.each([
  ['a bookmark', parseBookmark, { id: 1 }],
  ['a bookmark', parseBookmark, null],
  ['a list', parsePage, {}],
  ['a list', parsePage, null],
  ['a list', parsePage, { data: [null] }],
])('an answer that is not %s is not mistaken for a lost network', (_, parse, answer) => {
  let thrown: unknown
  try {
    parse(answer)
  } catch (error) {
    thrown = error
  }
  expect(thrown).toBeInstanceOf(Error)
  expect(thrown).not.toBeInstanceOf(TypeError)
})
