import { createHash } from 'node:crypto'
import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { anyText } from '../../../../scripts/testing/any-text.ts'
import { KEY_MAX_LENGTH, type KeyParse, parseKey, parseKeyHeader, REQUEST_HASH_VERSION, requestHash } from './key.ts'

const visible = fc.integer({ min: 0x21, max: 0x7e }).map((code) => String.fromCharCode(code))
const keys = fc.string({ unit: visible, minLength: 1, maxLength: KEY_MAX_LENGTH })

const quoted = (key: string) => `"${key.replace(/["\\]/g, '\\$&')}"`
const accepted = (key: string): KeyParse => ({ ok: true, key })
const refused = (problem: RegExp) => ({ ok: false, problem: expect.stringMatching(problem) })

describe('parseKey', () => {
  test('takes 1 to 256 visible ASCII characters as they are', () => {
    fc.assert(
      fc.property(keys, (key) => {
        expect(parseKey(key)).toEqual(accepted(key))
      }),
    )
    expect(parseKey('x'.repeat(256))).toEqual(accepted('x'.repeat(256)))
  })

  test('accepts CI keys with slashes, and quotes that are part of a key in a body', () => {
    expect(parseKey('refs/heads/main@1')).toEqual(accepted('refs/heads/main@1'))
    expect(parseKey('"a"')).toEqual(accepted('"a"'))
  })

  test.each([
    ['', /empty/],
    ['x'.repeat(257), /at most 256 characters, has 257/],
    ['a b', /character 2/],
    [' a', /character 1/],
    ['a\n', /character 2/],
    ['\u0000', /character 1/],
    ['a\u007f', /character 2/],
    ['schlüssel', /character 5/],
    ['一度', /character 1/],
    ['a\ud800', /character 2/],
    [42, /^must be a string$/],
    [true, /^must be a string$/],
    [null, /^must be a string$/],
  ])('refuses %j', (text, problem) => {
    expect(parseKey(text)).toEqual(refused(problem))
  })
})

describe('parseKeyHeader', () => {
  test('bare and quoted are the same key, with or without spaces around', () => {
    fc.assert(
      fc.property(
        keys.filter((key) => !key.startsWith('"')),
        fc.constantFrom('', ' ', '\t '),
        (key, space) => {
          expect(parseKeyHeader(`${space}${key}${space}`)).toEqual(accepted(key))
          expect(parseKeyHeader(`${space}${quoted(key)}${space}`)).toEqual(accepted(key))
        },
      ),
    )
  })

  test('any key can be written in quotes', () => {
    fc.assert(
      fc.property(keys, (key) => {
        expect(parseKeyHeader(quoted(key))).toEqual(accepted(key))
      }),
    )
  })

  test('the length counts without quotes and escapes', () => {
    expect(parseKeyHeader(quoted('\\'.repeat(256)))).toEqual(accepted('\\'.repeat(256)))
    expect(parseKeyHeader(quoted('a'.repeat(257)))).toEqual(refused(/has 257/))
  })

  test.each([
    ['', /empty/],
    ['   ', /empty/],
    ['""', /empty/],
    ['"', /without a closing/],
    ['"a', /without a closing/],
    ['"a\\"', /without a closing/],
    ['"a\\', /without a closing/],
    ['"a\\"; b=c', /without a closing/],
    ['"a";p=1', /characters after its closing quote/],
    ['"k-2"; a=b', /characters after its closing quote/],
    ['""a', /characters after its closing quote/],
    ['"a"b"', /not escaped/],
    ['"a\\n"', /only escape/],
    ['"a b"', /character 2/],
    ['"a\u0001"', /character 2/],
    ['a, b', /character 3/],
  ])('refuses %j', (header, problem) => {
    expect(parseKeyHeader(header)).toEqual(refused(problem))
  })

  test('any header gives a valid key or a problem', () => {
    fc.assert(
      fc.property(anyText(), (header) => {
        const parse = parseKeyHeader(header)
        if (parse.ok) expect(parse.key).toMatch(/^[\x21-\x7e]{1,256}$/)
        else expect(parse.problem).not.toBe('')
      }),
    )
  })
})

const values = fc.jsonValue({ maxDepth: 4 })

/** The same value with the members of its objects in another order. */
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

  test('the spelling of a number makes no difference', () => {
    const texts = ['{"n":1}', '{"n":1.0}', '{"n":1e0}', '{"n":10E-1}', ' { "n" : 1 } ']
    expect(new Set(texts.map((text) => requestHash(JSON.parse(text)))).size).toBe(1)
    expect(requestHash({ n: -0 })).toBe(requestHash({ n: 0 }))
  })

  test('a member without a value makes no difference', () => {
    expect(requestHash({ kind: 'k', queue: undefined })).toBe(requestHash({ kind: 'k' }))
  })

  test('a value and its JSON are the same', () => {
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
