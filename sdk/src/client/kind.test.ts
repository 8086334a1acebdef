import { expect, expectTypeOf, test } from 'vitest'
import { z } from 'zod'
import { defineKind, type KindOptions, type PayloadOf, type ResultOf } from './kind.ts'

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
])('%s: of %j, %j it is not', (message, name, options) => {
  expect(() => defineKind(name as string, options)).toThrow(message)
})

test('what a job may have at most and at least, a kind may say', () => {
  const least = { priority: -1000, maxAttempts: 1, timeoutSeconds: 0.001, leaseTtlSeconds: 1, continuationSeconds: 0 }
  const most = { priority: 1000, maxAttempts: 100, timeoutSeconds: 31_622_400, leaseTtlSeconds: 86_400 }
  const backoff = { baseSeconds: 0, capSeconds: 31_622_400, jitter: 1 }
  expect(defineKind('a'.repeat(128), { ...least, backoff })).toMatchObject({ queue: 'default', options: least })
  expect(defineKind('a:b.c-d_e', { ...most, queue: 'q' })).toMatchObject({ queue: 'q', options: most })
})

test('what a handler is given and a job results in can be named, after their transformations', () => {
  const kind = defineKind('k', { payload: z.object({ n: z.coerce.number() }), result: z.string() })
  expectTypeOf<PayloadOf<typeof kind>>().toEqualTypeOf<{ n: number }>()
  expectTypeOf<ResultOf<typeof kind>>().toEqualTypeOf<string>()
  const plain = defineKind('plain')
  expectTypeOf<PayloadOf<typeof plain>>().toBeUnknown()
  expect(kind.name).toBe('k')
})
