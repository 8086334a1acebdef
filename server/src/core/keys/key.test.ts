import fc from 'fast-check'
import { describe, expect, test } from 'vitest'
import { KEY_MAX_LENGTH, type KeyParse, parseKey, parseKeyHeader } from './key.ts'

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

  test('CI keys with slashes, and quotes that are part of a key in a body', () => {
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
  test('bare and quoted name the same key, with or without spaces around', () => {
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

  test('any key can be said in quotes', () => {
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

  test('whatever comes, the answer is a valid key or a problem', () => {
    fc.assert(
      fc.property(fc.string({ unit: 'binary' }), (header) => {
        const parse = parseKeyHeader(header)
        if (parse.ok) expect(parse.key).toMatch(/^[\x21-\x7e]{1,256}$/)
        else expect(parse.problem).not.toBe('')
      }),
    )
  })
})
