import { expect, test } from 'vitest'
import { encodeAnswer, type Fate, fateOf } from './answer.ts'

test.each<[Fate, number[]]>([
  ['store', [200, 201, 202, 204, 301, 302, 303, 304, 400, 402, 404, 405, 409, 410, 412, 413, 415, 422, 425, 451]],
  ['release', [401, 403, 429]],
  ['doubt', [408, 500, 501, 502, 503, 504, 599]],
])('%s: %j', (fate, statuses) => {
  for (const status of statuses) expect([status, fateOf(status)]).toEqual([status, fate])
})

test('objects become JSON; text and bytes stay unchanged', () => {
  const form = (body: unknown, headers = {}) => {
    const encoded = encodeAnswer({ status: 200, headers, body })
    return [Buffer.from(encoded.body ?? []).toString(), Object.fromEntries(encoded.headers)['content-type']]
  }
  expect(form({ a: 1 })).toEqual(['{"a":1}', 'application/json; charset=utf-8'])
  expect(form(null)).toEqual(['null', 'application/json; charset=utf-8'])
  expect(form('é')).toEqual(['é', 'text/plain; charset=utf-8'])
  expect(form(Buffer.from('x'))).toEqual(['x', 'application/octet-stream'])
  expect(form(undefined)).toEqual(['', undefined])
  expect(form('<p>', { 'Content-Type': 'text/html' })).toEqual(['<p>', 'text/html'])
})

test.each([0, 101, 600, 200.5, '200'])('%j is not a valid status', (status) => {
  // @ts-expect-error one of them is no number
  expect(() => encodeAnswer({ status })).toThrow('status must be an integer from 200 to 599')
})

test('a body that is not JSON is refused', () => {
  expect(() => encodeAnswer({ status: 200, body: () => 1 })).toThrow('body must be JSON, text or bytes, not function')
})

test.each([{ 'no name': 'x' }, { 'x-order': 'a\nb' }])('%j are not valid headers', (headers) => {
  expect(() => encodeAnswer({ status: 200, headers })).toThrow(TypeError)
})
