import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { anyText } from '../../../../scripts/testing/any-text.ts'
import { findJsonProblem, parseRequestJson } from './request-json.ts'
import { fieldName } from './text.ts'

const problemOf = (text: string) => {
  const parse = parseRequestJson(text)
  return parse.ok ? null : parse.problem.message
}

const nested = (depth: number, open = '[', close = ']') => open.repeat(depth) + close.repeat(depth)

describe('two members of one name', () => {
  test.each([
    ['{"a":1,"a":2}', 'a'],
    ['{"a":1,"\\u0061":2}', 'a'],
    ['{"\\u0061":1,"a":2}', 'a'],
    ['{"":1,"":2}', '""'],
    ['{"x":[{"a":1,"b":2,"a":3}]}', 'x.0.a'],
    ['{"a":{},"b":[],"a":1}', 'a'],
    ['{"a":"b","b":"a","\\u0062":1}', 'b'],
    ['{ "a" : "," , "a" : 1 }', 'a'],
    ['{"\\u00e9":1,"é":2}', 'é'],
    ['{"constructor":1,"constructor":2}', 'constructor'],
  ])('%s is refused', (text, field) => {
    const problem = { code: 'INVALID_PAYLOAD', field, message: `${field} occurs twice` }
    expect(parseRequestJson(text)).toEqual({ ok: false, problem })
  })

  test.each([
    '{"a":{"a":{"a":1}}}',
    '[{"a":1},{"a":2}]',
    '{"a":"a","b":["a","a"]}',
    '{"é":1,"e\\u0301":2}',
    '{"a":"\\"a\\":1,"}',
    '{"constructor":1,"toString":2,"hasOwnProperty":3}',
  ])('%s has none', (text) => {
    expect(parseRequestJson(text)).toEqual({ ok: true, value: JSON.parse(text) })
  })

  test('any object with a repeated member is refused', () => {
    const names = fc.string({ unit: fc.constantFrom('a', 'b', '"', '\\', '{', '}', ',', ':', 'é') })
    fc.assert(
      fc.property(fc.uniqueArray(names, { minLength: 1 }), fc.nat(), (members, pick) => {
        const again = members[pick % members.length] ?? ''
        const text = [...members, again].map((name) => `${JSON.stringify(name)}:{"x":[]}`).join(',')
        expect(problemOf(`{${text}}`)).toBe(`${fieldName([again])} occurs twice`)
      }),
    )
  })
})

describe('numbers', () => {
  test.each([
    ['9007199254740991', 9_007_199_254_740_991],
    ['-9007199254740991', -9_007_199_254_740_991],
    ['0.1', 0.1],
    ['1.0', 1],
    ['-0', -0],
    ['1e20', 1e20],
    ['1.7976931348623157e+308', Number.MAX_VALUE],
    ['5e-324', Number.MIN_VALUE],
    ['1e-400', 0],
    ['123456789.123456789123456789', 123_456_789.123_456_79],
    ['0.00000000000000000000001', 1e-23],
  ])('%s is taken as %d', (text, value) => {
    expect(parseRequestJson(text)).toEqual({ ok: true, value })
  })

  test.each([
    '9007199254740992',
    '9007199254740993',
    '-9007199254740992',
    '100000000000000000000',
    '9007199254740993.0',
  ])('%s would lose digits', (text) => {
    expect(problemOf(`{"n":[${text}]}`)).toBe(
      `n.0 is the integer ${text}, which loses digits beyond 2^53; send it as a string`,
    )
  })

  test.each(['1e400', '-1e400', '1E+309', `1${'0'.repeat(400)}`, '1e400000'])('%s is too large', (text) => {
    expect(problemOf(`[${text}]`)).toMatch(/^0 is the number .{1,40}, which is too large$/)
  })
})

test.each([
  ['NaN', 'The body is NaN, which JSON does not have; send null'],
  ['{"zpe_ev": NaN}', 'zpe_ev is NaN, which JSON does not have; send null'],
  ['{"result":{"freqs_cm":[1.5, -Infinity]}}', 'result.freqs_cm.1 is Infinity, which JSON does not have; send null'],
])('%s is refused with what to send instead', (text, message) => {
  expect(problemOf(text)).toBe(message)
})

test('text for a reader that replaces characters is accepted, and nothing else', () => {
  expect(parseRequestJson('{"a":"x\\u0000\\ud800"}', 'kept')).toEqual({ ok: true, value: { a: 'x\u0000\ud800' } })
  expect(parseRequestJson('{"a":1,"a":"\\u0000"}', 'kept')).toMatchObject({ ok: false })
})

describe('text that cannot be stored', () => {
  test.each([
    '"\ud800"',
    '"\udc00\ud800"',
    '"\\ud800"',
    '"\\udc00\\ud800"',
    '"\\uD83D"',
    '{"\\ud800":1}',
    '["a","x\\udfff"]',
  ])('half a surrogate pair in %j', (text) => {
    expect(problemOf(text)).toMatch(/ has half of a surrogate pair in a (string|name)$/)
  })

  test.each(['"😀"', '"\\ud83d\\ude00"', '"\ud83d\\ude00"', '"\\\\ud800"'])('%j is whole', (text) => {
    expect(parseRequestJson(text)).toEqual({ ok: true, value: JSON.parse(text) })
  })

  test.each(['"\\u0000"', '"a\\u0000b"', '{"\\u0000":1}', '"\u0000"'])('NUL in %j', (text) => {
    expect(problemOf(text)).toMatch(/ has a NUL character in a (string|name)$/)
  })

  test.each(['{"__proto__":{}}', '{"a":{"__proto__":1}}', '{"\\u005f_proto__":1}', '[{"x":1,"__proto__":null}]'])(
    '%s is refused, because it pollutes prototypes',
    (text) => {
      expect(problemOf(text)).toMatch(/__proto__ has a name that is not allowed$/)
    },
  )

  test('"__proto__" as a value is only text', () => {
    expect(parseRequestJson('["__proto__"]')).toEqual({ ok: true, value: ['__proto__'] })
  })
})

describe('depth', () => {
  test('64 levels are taken, 65 are not', () => {
    expect(parseRequestJson(nested(64)).ok).toBe(true)
    expect(parseRequestJson(nested(64, '{"a":', '}').replace('{"a":}', '{}')).ok).toBe(true)
    expect(problemOf(nested(65))).toBe(`${Array(64).fill(0).join('.')} is nested more than 64 levels deep`)
    expect(problemOf(nested(65, '{"a":', '}').replace('{"a":}', '{}'))).toMatch(/more than 64 levels/)
  })

  test('brackets in strings and closed brackets do not count', () => {
    expect(parseRequestJson(JSON.stringify(nested(1_000))).ok).toBe(true)
    expect(parseRequestJson(`[${Array(1_000).fill('[[]]').join()}]`).ok).toBe(true)
  })

  test('a million levels cost no stack and next to no time', () => {
    for (const open of ['[', '{"a":']) expect(problemOf(open.repeat(1_000_000))).toMatch(/more than 64 levels/)
  })
})

describe('the field that is wrong', () => {
  test.each([
    ['"\\u0000"', '', 'The body has a NUL character in a string'],
    ['{"payload":{"note":"\\u0000"}}', 'payload.note', 'payload.note has a NUL character in a string'],
    ['{"jobs":[{},{"payload":[1e999]}]}', 'jobs.1.payload.0', /^jobs.1.payload.0 is the number 1e999/],
    ['{"a":[[],[{}],"]",{"b":"}"}],"c":{"d":"\\ud800"}}', 'c.d', /^c.d has half/],
    ['{"a":{"b":1},"__proto__":1}', '__proto__', '__proto__ has a name that is not allowed'],
    ['{"a":{"b\\u0000":1}}', 'a', 'a has a NUL character in a name'],
    ['{"\\udfff":1}', '', 'The body has half of a surrogate pair in a name'],
    ['{"":{"":"\\u0000"}}', '"".""', /^""."" has a NUL/],
    ['{"a\\"b":["\\\\","\\u0000"]}', 'a"b.1', /^a"b.1 has a NUL/],
  ])('of %s is %s', (text, field, message) => {
    const words = typeof message === 'string' ? message : expect.stringMatching(message)
    expect(parseRequestJson(text)).toEqual({ ok: false, problem: { code: 'INVALID_PAYLOAD', field, message: words } })
  })

  test('is below the field that holds the text, if that is known', () => {
    expect(findJsonProblem('{"a":["\\u0000"]}', 'payload')).toMatchObject({ field: 'payload.a.0' })
    expect(findJsonProblem('"\\u0000"', 'events.3.data')).toMatchObject({
      field: 'events.3.data',
      message: 'events.3.data has a NUL character in a string',
    })
  })

  test('has a bounded length, however long its names and however deep it is', () => {
    const long = findJsonProblem(`{"a":{"${'é'.repeat(1_000_000)}":"\\u0000"}}`)
    expect(long?.field).toBe(`a.${'é'.repeat(100)}…`)
    const deep = findJsonProblem(`${`{"${'n'.repeat(99)}":`.repeat(60)}"\\u0000"`)
    expect(deep?.field).toBe(`${`${'n'.repeat(99)}.`.repeat(3)}…`)
    expect(deep?.message).toBe(`${deep?.field} has a NUL character in a string`)
  })

  const names = fc.string({ unit: fc.constantFrom('a', 'b', '"', '\\', '{', '}', '[', ']', ',', ':', 'é', ' ') })
  const spaces = fc.constantFrom('', ' ', '\n\t')
  const values = fc.jsonValue({ maxDepth: 3 }).filter((value) => !isRefused(value))
  const around = fc.record({
    names: fc.uniqueArray(names, { minLength: 1, maxLength: 6 }),
    values: fc.array(values, { minLength: 6, maxLength: 6 }),
    place: fc.nat(),
    inList: fc.boolean(),
    space: spaces,
  })
  const wrong = fc.constantFrom<[string, string[]]>(
    ['"\\u0000"', []],
    ['"a\\ud800"', []],
    ['9007199254740993', []],
    ['-1e400', []],
    ['{"a":[1,{"a":2}],"a":3}', ['a']],
    ['{"a":1,"__proto__":{}}', ['__proto__']],
    ['{"a":{"\\u0000":1}}', ['a']],
  )

  test('of any document is the place of the one bad value', () => {
    fc.assert(
      fc.property(wrong, fc.array(around, { maxLength: 6 }), ([bad, inside], levels) => {
        let [text, path]: [string, (string | number)[]] = [bad, inside]
        for (const { names, values, place, inList, space } of levels) {
          const at = place % names.length
          const entries = names.map((name, i) => {
            const value = i === at ? text : JSON.stringify(values[i])
            return inList ? value : `${JSON.stringify(name)}${space}:${space}${value}`
          })
          const joined = entries.join(`${space},${space}`)
          text = inList ? `[${joined}]` : `{${space}${joined}${space}}`
          path = [inList ? at : (names[at] ?? ''), ...path]
        }
        const found = findJsonProblem(text)
        expect(found?.field).toBe(fieldName(path))
        expect(found?.message.startsWith(path.length === 0 ? 'The body ' : `${fieldName(path)} `)).toBe(true)
      }),
      { numRuns: 1_000 },
    )
  })
})

describe('text that is not JSON', () => {
  test.each([
    '',
    ' ',
    '{',
    '}',
    ']]]]',
    '"',
    '"\\',
    '"\\x"',
    '{"\\x":1,"\\x":2}',
    '{"a" 1}',
    '{"a":1,}',
    '[1,]',
    "{'a':1}",
    '01',
    '+1',
    '-',
    '1e',
    '.5',
    '1.2.3',
    'undefined',
    '"\n"',
    '\ufeff{}',
    '{}{}',
    '/* */1',
  ])('%j is refused as not valid', (text) => {
    expect(problemOf(text)).toMatch(/^The body is not valid JSON: /)
  })

  test('any text: never an exception, and never accepted if JSON.parse refuses it', () => {
    const pieces = fc.constantFrom(
      '{',
      '}',
      '[',
      ']',
      ',',
      ':',
      '"',
      '\\',
      '"a"',
      '\\u0061',
      '1',
      '-',
      'e5',
      'null',
      ' ',
    )
    fc.assert(
      fc.property(fc.array(pieces, { maxLength: 30 }), (parts) => {
        const text = parts.join('')
        if (parseRequestJson(text).ok) expect(() => JSON.parse(text)).not.toThrow()
      }),
      { numRuns: 3_000 },
    )
  })
})

describe('any JSON value', () => {
  test('is returned as it was sent', () => {
    fc.assert(
      fc.property(fc.jsonValue({ maxDepth: 8 }), (value) => {
        fc.pre(!isRefused(value))
        const text = JSON.stringify(value)
        expect(parseRequestJson(text)).toEqual({ ok: true, value: JSON.parse(text) })
      }),
      { numRuns: 1_000 },
    )
  })

  test('with any text in it, plain or escaped', () => {
    const escaped = (text: string) =>
      `"${[...text]
        .flatMap((c) => c.split(''))
        .map((c) => `\\u${c.charCodeAt(0).toString(16).padStart(4, '0')}`)
        .join('')}"`
    fc.assert(
      fc.property(anyText(), (text) => {
        const storable = text.isWellFormed() && !text.includes('\u0000')
        for (const json of [JSON.stringify(text), escaped(text)]) {
          const parse = parseRequestJson(`{"a":[${json}]}`)
          expect(parse.ok ? parse.value : null).toEqual(storable ? { a: [text] } : null)
        }
      }),
    )
  })
})

/** Generated values have no lone surrogates or duplicates, but may have the rest. */
function isRefused(value: unknown): boolean {
  if (typeof value === 'number')
    return Number.isInteger(value) && !Number.isSafeInteger(value) && Math.abs(value) < 1e21
  if (typeof value === 'string') return value.includes('\u0000')
  if (typeof value !== 'object' || value === null) return false
  return Object.entries(value).some(([name, member]) => name === '__proto__' || isRefused(name) || isRefused(member))
}
