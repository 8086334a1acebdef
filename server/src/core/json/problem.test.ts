import { expect, test } from 'vitest'
import { z } from 'zod'
import { describeProblem } from './problem.ts'

const schema = z
  .strictObject({
    name: z.string().min(1).max(5),
    count: z.int().min(1).max(9).optional(),
    share: z.number().gt(0).lt(1).optional(),
    list: z
      .array(z.strictObject({ id: z.uuid() }))
      .min(1)
      .max(2)
      .optional(),
    sort: z.enum(['up', 'down']).optional(),
    only: z.literal('this').optional(),
    at: z.iso.datetime().optional(),
    flag: z.boolean().optional(),
    code: z.string().regex(/^x/, 'must begin with x').optional(),
    names: z.record(z.string().regex(/^[a-z]+$/, 'must be lower case'), z.string()).optional(),
  })
  .refine(({ name }) => name !== 'taken', { path: ['name'], error: 'is taken' })

test.each([
  [{}, 'Missing required field: name'],
  [null, 'The body must be a JSON object'],
  [[], 'The body must be a JSON object'],
  [{ name: 1 }, 'name must be a string'],
  [{ name: null }, 'name must be a string'],
  [{ name: '' }, 'name must not be empty'],
  [{ name: 'too long' }, 'name must have at most 5 characters'],
  [{ name: 'taken' }, 'name is taken'],
  [{ name: 'a', count: 0 }, 'count must be at least 1'],
  [{ name: 'a', count: 10 }, 'count must be at most 9'],
  [{ name: 'a', count: 1.5 }, 'count must be a whole number'],
  [{ name: 'a', count: Number.NaN }, 'count must be a number'],
  [{ name: 'a', share: 0 }, 'share must be more than 0'],
  [{ name: 'a', share: 1 }, 'share must be less than 1'],
  [{ name: 'a', list: [] }, 'list must have at least 1 entry'],
  [{ name: 'a', list: {} }, 'list must be a list'],
  [{ name: 'a', list: [{}] }, 'Missing required field: list.0.id'],
  [{ name: 'a', list: [{ id: 'x' }] }, 'list.0.id must be a UUID'],
  [{ name: 'a', sort: 'left' }, 'sort must be one of up, down'],
  [{ name: 'a', only: 'that' }, 'only must be this'],
  [{ name: 'a', at: 'noon' }, 'at must be an ISO 8601 instant, like 2031-05-06T07:08:09Z'],
  [{ name: 'a', flag: 'yes' }, 'flag must be true or false'],
  [{ name: 'a', code: 'y' }, 'code must begin with x'],
  [{ name: 'a', names: { A: '' } }, 'names.A has a name that is not allowed: it must be lower case'],
  [{ name: 'a', nmae: 'b' }, 'Unknown field: nmae'],
  [{ name: 'a', list: [{ id: '01900000-0000-7000-8000-000000000000', od: 1 }] }, 'Unknown field: list.0.od'],
])('%j: %s', (input, message) => {
  const parsed = schema.safeParse(input)
  expect(parsed.success).toBe(false)
  if (parsed.error !== undefined) expect(describeProblem(parsed.error).message).toBe(message)
})

test('a name of any length is shortened in the answer', () => {
  const parsed = z.strictObject({}).safeParse({ ['x'.repeat(10_000)]: 1 })
  if (parsed.success) throw new Error('It has an unknown field')
  expect(describeProblem(parsed.error).message.length).toBeLessThan(200)
})

test('no character of a long name is cut in half', () => {
  const parsed = z.strictObject({}).safeParse({ [`x${'💥'.repeat(100)}`]: 1 })
  if (parsed.success) throw new Error('It has an unknown field')
  expect(describeProblem(parsed.error).message.isWellFormed()).toBe(true)
})
