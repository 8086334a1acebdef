import { expect, test } from 'vitest'
import { differenceOfJson, differenceOfText } from './answers.ts'
import { blocksOf } from './blocks.ts'

const page = (...lines: string[]) => blocksOf('a.md', lines.join('\n'))

test('blocks are found with their language, their marks and their place', () => {
  const found = page(
    '# A',
    '```sh fails no-run="needs a GPU box"',
    'one',
    '',
    'two',
    '```',
    '- in a list',
    '  ```json',
    '  {}',
    '  ```',
  )
  const marks = new Map([
    ['fails', ''],
    ['no-run', 'needs a GPU box'],
  ])
  expect(found).toEqual([
    { at: 'a.md:2', language: 'sh', marks, text: 'one\n\ntwo\n' },
    { at: 'a.md:8', language: 'json', marks: new Map(), text: '{}\n' },
  ])
})

test.for([
  [['```sh norun="it is misspelt"', '```'], 'there is no mark norun'],
  [['```sh no-run', '```'], 'no-run needs a reason'],
  [['```sh', 'echo'], 'the block does not end'],
] as const)('%j is refused', ([lines, message]) => {
  expect(() => page(...lines)).toThrow(message)
})

const ID = '01a1e12b-7c1e-7b52-9d4e-3f6a8b2c1d07'

test.for([
  ['a  b', 'a      b\n', true],
  ['a b', 'a b c', false],
  ['a …', 'a b\nc', true],
  [`job ${ID}`, 'job 01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d08', true],
  [`job ${ID}`, 'job 17', false],
  ['01a1e12b-… RUNNING', '01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d08 RUNNING', true],
  ['2026-11-15T21:00:00.000Z', '2031-01-01T00:00:00.123Z', true],
  ['in 10 s', 'in 9.4 s', true],
  ['10 jobs', '11 jobs', false],
  ['(a|b)', 'a', false],
] as const)('text: %j stands for %j: %j', ([shown, got, same]) => {
  expect(differenceOfText(shown, got) === null).toBe(same)
})

test.for([
  [{ a: 1 }, { a: 1 }, true],
  [{ a: 1 }, { a: 2 }, false],
  [{ a: 1 }, { a: 1, b: 2 }, false],
  [{ a: 1, '…': '…' }, { a: 1, b: 2 }, true],
  [{ a: 1, b: 2 }, { a: 1 }, false],
  [[1], [1, 2], false],
  [[1, '…'], [1, 2], true],
  [[1, '…'], [], false],
  [{ id: '01a1e12b-…' }, { id: ID }, true],
  [{ a: null }, {}, false],
  [{ a: '…' }, { a: { b: [1] } }, true],
] as const)('JSON: %j stands for %j: %j', ([shown, got, same]) => {
  expect(differenceOfJson(JSON.stringify(shown), JSON.stringify(got)) === null).toBe(same)
})

test('text that is not JSON is reported', () => {
  expect(differenceOfJson('null', 'nobody')).toContain('not JSON')
})
