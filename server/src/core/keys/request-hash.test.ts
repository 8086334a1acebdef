import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { REQUEST_HASH_VERSION, requestHash } from './request-hash.ts'

const values = fc.jsonValue({ maxDepth: 4 })

/** The same value, the members of its objects in another order. */
function reordered(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(reordered)
  if (typeof value !== 'object' || value === null) return value
  const entries = Object.entries(value).map(([name, member]): [string, unknown] => [name, reordered(member)])
  return Object.fromEntries(entries.reverse())
}

describe('the same request', () => {
  test('the order of members makes no difference, at any depth', () => {
    expect(requestHash({ a: 1, b: { c: 2, d: [{ e: 3, f: 4 }] } })).toBe(
      requestHash({ b: { d: [{ f: 4, e: 3 }], c: 2 }, a: 1 }),
    )
    fc.assert(
      fc.property(values, (value) => {
        expect(requestHash(reordered(value))).toBe(requestHash(value))
      }),
    )
  })

  test('neither does the way a number is written', () => {
    const texts = ['{"n":1}', '{"n":1.0}', '{"n":1e0}', '{"n":10E-1}', ' { "n" : 1 } ']
    expect(new Set(texts.map((text) => requestHash(JSON.parse(text)))).size).toBe(1)
    expect(requestHash({ n: -0 })).toBe(requestHash({ n: 0 }))
  })

  test('nor a member that is there without a value', () => {
    expect(requestHash({ kind: 'k', queue: undefined })).toBe(requestHash({ kind: 'k' }))
  })

  test('a value and what its JSON says are the same', () => {
    fc.assert(
      fc.property(values, (value) => {
        expect(requestHash(JSON.parse(JSON.stringify(value)))).toBe(requestHash(value))
      }),
    )
    expect(requestHash({ at: new Date(0) })).toBe(requestHash({ at: '1970-01-01T00:00:00.000Z' }))
  })
})

describe('another request', () => {
  test.each<[unknown, unknown]>([
    [{ a: 1 }, { a: 2 }],
    [{ a: 1 }, { a: '1' }],
    [{ a: 1 }, { b: 1 }],
    [{ a: null }, {}],
    [{ a: 0 }, { a: false }],
    [
      [1, 2],
      [2, 1],
    ],
    [[], {}],
    [{ a: 'é' }, { a: 'e\u0301' }],
    [{ n: 9_007_199_254_740_991 }, { n: 9_007_199_254_740_990 }],
  ])('%j is not %j', (a, b) => {
    expect(requestHash(a)).not.toBe(requestHash(b))
  })

  test('values that differ as JSON differ in their hash', () => {
    fc.assert(
      fc.property(values, values, (a, b) => {
        const same = JSON.stringify(sorted(a)) === JSON.stringify(sorted(b))
        expect(requestHash(a) === requestHash(b)).toBe(same)
      }),
    )
  })
})

function sorted(value: unknown): unknown {
  if (Array.isArray(value)) return value.map(sorted)
  if (typeof value !== 'object' || value === null) return value
  const members = Object.entries(value).map(([name, member]): [string, unknown] => [name, sorted(member)])
  return { members: members.sort(([a], [b]) => (a < b ? -1 : 1)) }
}

test('version 1 is SHA-256 over RFC 8785', () => {
  expect(REQUEST_HASH_VERSION).toBe(1)
  // The example of RFC 8785 §3.2.2, and its canonical form from §3.2.3.
  const example = {
    // biome-ignore lint/correctness/noPrecisionLoss: the RFC's own example
    numbers: [333333333.33333329, 1e30, 4.5, 2e-3, 0.000000000000000000000000001],
    string: '\u20ac$\u000F\u000aA\u0027\u0042\u0022\u005c\\"\u002f',
    literals: [null, true, false],
  }
  const canonical =
    '{"literals":[null,true,false],"numbers":[333333333.3333333,1e+30,4.5,0.002,1e-27],"string":"€$\\u000f\\nA\'B\\"\\\\\\\\\\"/"}'
  expect(requestHash(example)).toBe(createHash('sha256').update(canonical).digest('hex'))
})

test.each([undefined, Number.NaN, Number.POSITIVE_INFINITY, () => 0, '\ud800'])(
  '%s is no JSON value and has no hash',
  (value) => {
    expect(() => requestHash(value)).toThrow()
  },
)
