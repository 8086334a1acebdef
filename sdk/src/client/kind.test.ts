import { expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { defineKind, type KindOptions, type PayloadOf, pathText, type ResultOf, requireJson } from './kind.ts'

test.each<[string, unknown, KindOptions<undefined, undefined>]>([
  ['name must be 1 to 128 letters', '', {}],
  ['name must be 1 to 128 letters', 'a b', {}],
  ['come from defineKind(), but it is', undefined, {}],
  ['queue must be 1 to 128 letters', 'a', { queue: 'a b' }],
  ['domain must be 1 to 128 letters', 'a', { domain: '' }],
  ['priority must be a whole number from -1000 to 1000', 'a', { priority: 1001 }],
  ['maxAttempts must be a whole number from 1 to 100', 'a', { maxAttempts: 0 }],
  ['maxAttempts must be a whole number', 'a', { maxAttempts: 1.5 }],
  ['maxAttempts must be a whole number', 'a', { maxAttempts: '5' as never }],
  ['timeoutSeconds must be a number above 0, at most 31622400', 'a', { timeoutSeconds: 0 }],
  ['timeoutSeconds must be a number', 'a', { timeoutSeconds: Number.NaN }],
  ['timeoutSeconds must be a number', 'a', { timeoutSeconds: Number.POSITIVE_INFINITY }],
  ['leaseTtlSeconds must be a whole number from 1 to 86400', 'a', { leaseTtlSeconds: 0 }],
  ['continuationSeconds must be a whole number from 0 to 86400', 'a', { continuationSeconds: -1 }],
  ['backoff.baseSeconds must be a number from 0', 'a', { backoff: { baseSeconds: -1 } }],
  ['backoff.jitter must be a number from 0 to 1', 'a', { backoff: { jitter: 2 } }],
])('%s: %j with %j is refused', (message, name, options) => {
  expect(() => defineKind(name as string, options)).toThrow(message)
})

test('the limits of a job are valid for a kind', () => {
  const least = { priority: -1000, maxAttempts: 1, timeoutSeconds: 0.001, leaseTtlSeconds: 1, continuationSeconds: 0 }
  const most = { priority: 1000, maxAttempts: 100, timeoutSeconds: 31_622_400, leaseTtlSeconds: 86_400 }
  const backoff = { baseSeconds: 0, capSeconds: 31_622_400, jitter: 1 }
  expect(defineKind('a'.repeat(128), { ...least, backoff })).toMatchObject({ queue: 'default', options: least })
  expect(defineKind('a:b.c-d_e', { ...most, queue: 'q' })).toMatchObject({ queue: 'q', options: most })
})

test('PayloadOf and ResultOf are the types after the transformations', () => {
  const kind = defineKind('k', { payload: z.object({ n: z.coerce.number() }), result: z.string() })
  expectTypeOf<PayloadOf<typeof kind>>().toEqualTypeOf<{ n: number }>()
  expectTypeOf<ResultOf<typeof kind>>().toEqualTypeOf<string>()
  const plain = defineKind('plain')
  expectTypeOf<PayloadOf<typeof plain>>().toBeUnknown()
  expect(kind.name).toBe('k')
})

class Point {
  readonly x = 1
}

const holed = Object.assign([1], { length: 3 })
const inCircle: Record<string, unknown> = { list: [] }
inCircle.list = [{ back: inCircle }]
const nested = (levels: number): unknown => (levels === 0 ? 1 : [nested(levels - 1)])
const shared = { n: 1 }

test.each<[unknown, string]>([
  [
    { items: [0, 1, 2, { when: new Map() }] },
    'result.items[3].when is a Map, which JSON cannot hold: use Object.fromEntries(map)',
  ],
  [{ tags: new Set(['a']) }, 'result.tags is a Set, which JSON cannot hold: use an array'],
  [1n, 'result is a BigInt, which JSON cannot hold: use a string'],
  [{ n: Number.NaN }, 'result.n is NaN, which JSON cannot hold: use null or a string'],
  [[-Infinity], 'result[0] is -Infinity, which JSON cannot hold: use null or a string'],
  [{ list: [1, undefined] }, 'result.list[1] is undefined, which an array in JSON cannot hold: use null'],
  [holed, 'result[1] is undefined, which an array in JSON cannot hold: use null'],
  [() => 1, 'result is a function, which JSON cannot hold'],
  [{ a: { b: Symbol('c') } }, 'result.a.b is a symbol, which JSON cannot hold'],
  [{ at: new Date(Number.NaN) }, 'result.at is an invalid Date'],
  [{ 'a b': new Point() }, 'result["a b"] is a Point, which JSON cannot hold: use a plain object or a toJSON()'],
  [{ error: new RangeError('x') }, 'result.error is a RangeError, which'],
  [new Uint8Array(2), 'result is a Uint8Array, which'],
  [{ later: Promise.resolve(1) }, 'result.later is a Promise, which JSON cannot hold: await it'],
  [inCircle, 'result.list[0].back is circular'],
  [{ toJSON: () => ({ big: 1n }) }, 'result.big is a BigInt'],
  [nested(65), `result${'[0]'.repeat(64)} is nested more than 64 levels deep`],
])('%o is refused with its path', (value, message) => {
  const refused = () => requireJson(value, 'result')
  expect(refused).toThrow(expect.objectContaining({ name: 'InvalidValue', message: expect.stringContaining(message) }))
})

test.each<[unknown]>([
  [undefined],
  [null],
  ['text'],
  [{ gone: undefined, list: [null, { deep: [true, 1.5] }] }],
  [{ at: new Date(0), url: new URL('https://example.org/'), bytes: Buffer.from('a') }],
  [Object.assign(Object.create(null), { n: 1 })],
  [[shared, shared]],
  [nested(64)],
])('%o is JSON', (value) => {
  expect(() => requireJson(value, 'result')).not.toThrow()
})

test('a path is written as code would write it, and a long one is cut', () => {
  expect(pathText('payload', ['größe', 0, '1', '', 'a-b', '$x'])).toBe('payload.größe[0][1][""]["a-b"].$x')
  expect(pathText('payload', ['a'.repeat(400)])).toHaveLength(300)
})
