import { expect, test } from 'vitest'
import { type Asked, hashOf, parseHeader } from './gate.ts'

const asked = (change: Partial<Asked> = {}): Asked => ({
  method: 'POST',
  target: '/orders/1?draft=yes',
  contentType: 'application/json',
  body: Buffer.from('{"item": "tea", "n": 1}'),
  ...change,
})
const first = hashOf(asked())

test.each<[string, Partial<Asked>]>([
  ['the order of members', { body: Buffer.from('{"n":1,"item":"tea"}') }],
  ['the spelling of a number', { body: Buffer.from('{"item":"tea","n":1.0}') }],
  ['a charset', { contentType: 'Application/JSON; charset=utf-8' }],
  ['that an earlier parser read it', { body: { parsed: { n: 1, item: 'tea' } } }],
])('%s does not make another request', (_, change) => {
  expect(hashOf(asked(change))).toBe(first)
})

test.each<[string, Partial<Asked>]>([
  ['another method', { method: 'PUT' }],
  ['another parameter of the path', { target: '/orders/2?draft=yes' }],
  ['another query', { target: '/orders/1?draft=no' }],
  ['no query', { target: '/orders/1' }],
  ['another type', { contentType: 'text/plain' }],
  ['another value', { body: Buffer.from('{"item":"tea","n":2}') }],
  ['no body', { body: Buffer.alloc(0) }],
  // JSON.parse drops the first of two members with one name, so this must not count as the same.
  ['a member twice', { body: Buffer.from('{"item":"tea","n":3,"n":1}') }],
  ['no JSON, whatever the type says', { body: Buffer.from('{"item":') }],
])('%s makes another request', (_, change) => {
  expect(hashOf(asked(change))).not.toBe(first)
})

test('bytes and text are compared unchanged', () => {
  const text = (body: Asked['body']) => hashOf(asked({ contentType: 'text/plain', body }))
  expect(text({ parsed: 'a b' })).toBe(text(Buffer.from('a b')))
  expect(text({ parsed: Buffer.from('a b') })).toBe(text(Buffer.from('a b')))
  expect(text(Buffer.from('a  b'))).not.toBe(text(Buffer.from('a b')))
})

test('a parsed body that is not JSON still has a hash', () => {
  expect(hashOf(asked({ body: { parsed: undefined } }))).toBe(hashOf(asked({ body: Buffer.alloc(0) })))
  expect(hashOf(asked({ body: { parsed: { half: '\ud800' } } }))).toMatch(/^[0-9a-f]{64}$/)
})

test.each(['a, b', '"a", "b"', 'a, a'])('%s is refused as two keys', (header) => {
  expect(parseHeader(header)).toEqual({ ok: false, problem: 'must be sent once, not several times' })
})
