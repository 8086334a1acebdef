import { type ErrorCode, JSON_MAX_DEPTH } from '@ichido/sdk/protocol'
import type { Problem } from './problem.ts'
import { clip, fieldName, isStorable } from './text.ts'

/** `why` is the end of a sentence that begins with the field's name. The code is INVALID_PAYLOAD if it is left out. */
type Refused = { why: string; code?: ErrorCode }
type Found = Refused & { offset: number }

const TOO_DEEP: Refused = { why: `is nested more than ${JSON_MAX_DEPTH} levels deep` }

const LITERAL_MAX = 40
const QUOTE = 0x22
const BACKSLASH = 0x5c

/**
 * Finds what `JSON.parse` accepts and Ichido refuses, because it would be stored differently than it was sent: two
 * members of one name (the first would be lost), integers beyond 2^53 (digits would change), numbers that overflow,
 * lone surrogates and NUL (PostgreSQL cannot store them), `__proto__` (it pollutes prototypes when objects are merged),
 * and nesting that would exhaust a stack. RFC 7493 (I-JSON) asks senders for the same. The text may be JSON of a body
 * or of a field. Null means that it can be parsed.
 */
export function findJsonProblem(text: string, field?: string): Problem | null {
  return findProblem(text, field, 'refused')
}

/** NUL and lone surrogates are `refused`, or `kept` for a reader that replaces them. */
type Unstorable = 'refused' | 'kept'

function findProblem(text: string, field: string | undefined, unstorable: Unstorable): Problem | null {
  const found = find(text, unstorable)
  if (found === null) return null
  const path = pathTo(text, found.offset)
  return describe(fieldName(field === undefined ? path : [field, ...path]), found)
}

function describe(field: string, { why, code = 'INVALID_PAYLOAD' }: Refused): Problem {
  return { code, field, message: `${field === '' ? 'The body' : field} ${why}` }
}

/** For a body that is not read to its end. */
export const BODY_TOO_DEEP = describe('', TOO_DEEP)

/** The names of one object. A set costs more than the few names that most objects have. */
type Names = string[] | Set<string>
const NAMES_IN_LIST_MAX = 8

function find(text: string, unstorable: Unstorable): Found | null {
  const checkText = unstorable === 'kept' ? () => null : textCheck(text)
  /** One entry for each open bracket: the names of the object so far, or null for an array. */
  const open: (Names | null)[] = []
  let expectsName = false
  let i = 0
  while (i < text.length) {
    const code = text.charCodeAt(i)
    switch (code) {
      case 0x7b: // {
      case 0x5b: // [
        if (open.length === JSON_MAX_DEPTH) return { ...TOO_DEEP, offset: i }
        open.push(code === 0x7b ? [] : null)
        expectsName = code === 0x7b
        i++
        break
      case 0x7d: // }
      case 0x5d: // ]
        open.pop()
        expectsName = false
        i++
        break
      case 0x2c: // ,
        expectsName = (open.at(-1) ?? null) !== null
        i++
        break
      case QUOTE: {
        const end = endOfString(text, i)
        if (end === -1) return null
        const problem = checkText(i, end)
        if (problem !== null) return { why: `${problem} in a ${expectsName ? 'name' : 'string'}`, offset: i }
        const names = open.at(-1) ?? null
        if (expectsName && names !== null) {
          const name = stringValue(text, i, end)
          if (name === undefined) return null
          if (name === '__proto__') return { why: 'has a name that is not allowed', offset: i }
          const more = withName(names, name)
          if (more === null) return { why: 'occurs twice', offset: i }
          if (more !== names) open[open.length - 1] = more
          expectsName = false
        }
        i = end + 1
        break
      }
      default:
        if (code === 0x2d || (code >= 0x30 && code <= 0x39)) {
          const end = endOfNumber(text, i)
          const problem = numberProblem(text, i, end)
          if (problem !== null) return { why: problem, offset: i }
          i = end
        } else if (code === 0x4e || code === 0x49) {
          const [word] = /^(NaN|Infinity)/.exec(text.slice(i, i + 8)) ?? []
          if (word !== undefined) return { why: `is ${word}, which JSON does not have; send null`, offset: i }
          i++
        } else i++
    }
  }
  return null
}

/** Returns null if the name occurred before. */
function withName(names: Names, name: string): Names | null {
  if (names instanceof Set) return names.has(name) ? null : names.add(name)
  if (names.includes(name)) return null
  if (names.length === NAMES_IN_LIST_MAX) return new Set(names).add(name)
  names.push(name)
  return names
}

/**
 * Finds the names and indices that lead to a refused place. It reads the text a second time, so that `find`, which
 * every request pays for, need not track them.
 */
function pathTo(text: string, offset: number): (string | number)[] {
  /** One entry for each open bracket: the current member or index. */
  const path: (string | number)[] = []
  let expectsName = false
  let i = 0
  while (i < offset) {
    const at = path.at(-1)
    switch (text.charCodeAt(i)) {
      case 0x7b: // {
        path.push('')
        expectsName = true
        break
      case 0x5b: // [
        path.push(0)
        expectsName = false
        break
      case 0x7d: // }
      case 0x5d: // ]
        path.pop()
        expectsName = false
        break
      case 0x2c: // ,
        if (typeof at === 'number') path[path.length - 1] = at + 1
        expectsName = typeof at === 'string'
        break
      case QUOTE: {
        const end = endOfString(text, i)
        if (expectsName) path[path.length - 1] = stringValue(text, i, end) ?? ''
        expectsName = false
        i = end
        break
      }
    }
    i++
  }
  if (!expectsName || text.charCodeAt(offset) !== QUOTE) return path
  const name = stringValue(text, offset, endOfString(text, offset)) ?? ''
  // A name that cannot be stored cannot be shown either, so the path ends at its object.
  return isStorable(name) ? [...path.slice(0, -1), name] : path.slice(0, -1)
}

type JsonParse = { ok: true; value: unknown } | { ok: false; problem: Problem }

export function parseRequestJson(text: string, unstorable: Unstorable = 'refused'): JsonParse {
  const problem = findProblem(text, undefined, unstorable)
  if (problem !== null) return { ok: false, problem }
  try {
    return { ok: true, value: JSON.parse(text) as unknown }
  } catch (error) {
    const why = error instanceof Error ? error.message : String(error)
    return { ok: false, problem: describe('', { why: `is not valid JSON: ${why}` }) }
  }
}

/** Most strings are short. For a long string `indexOf` is many times faster. */
const LOOK_AT = 64

function endOfString(text: string, start: number): number {
  const soon = Math.min(text.length, start + LOOK_AT)
  let i = start + 1
  for (; i < soon; i++) {
    const code = text.charCodeAt(i)
    if (code === BACKSLASH) i++
    else if (code === QUOTE) return i
  }
  let end = text.indexOf('"', i)
  while (end !== -1 && isEscaped(text, i, end)) end = text.indexOf('"', end + 1)
  return end
}

/** A quote is escaped after an odd number of backslashes. Backslashes before `from` do not count. */
function isEscaped(text: string, from: number, at: number): boolean {
  let first = at
  while (first > from && text.charCodeAt(first - 1) === BACKSLASH) first--
  return (at - first) % 2 === 1
}

/** Returns a check that says what in a string cannot be stored. */
function textCheck(text: string): (start: number, end: number) => string | null {
  const isPlain = text.isWellFormed() && !text.includes('\u0000')
  let backslash = -1
  return (start, end) => {
    if (isPlain) {
      // This backslash serves all strings before it.
      if (backslash < start) backslash = indexOrEnd(text, '\\', start)
      if (backslash > end || !ESCAPED_UNSTORABLE.test(text.slice(backslash, end))) return null
    }
    const value = stringValue(text, start, end)
    if (value === undefined || isStorable(value)) return null
    return value.includes('\u0000') ? 'has a NUL character' : 'has half of a surrogate pair'
  }
}

/** An escaped NUL, or half of a surrogate pair. Parsing then shows whether the pair is complete. */
const ESCAPED_UNSTORABLE = /\\u(0000|d[89a-f])/i

function indexOrEnd(text: string, what: string, from: number): number {
  const found = text.indexOf(what, from)
  return found === -1 ? text.length : found
}

function stringValue(text: string, start: number, end: number): string | undefined {
  const raw = text.slice(start + 1, end)
  if (!raw.includes('\\')) return raw
  try {
    return JSON.parse(text.slice(start, end + 1)) as string
  } catch {
    return undefined
  }
}

function endOfNumber(text: string, start: number): number {
  let i = start + 1
  while (i < text.length && isOfNumber(text.charCodeAt(i))) i++
  return i
}

function isOfNumber(code: number): boolean {
  const isDigit = code >= 0x30 && code <= 0x39
  // + - . E e
  return isDigit || code === 0x2b || code === 0x2d || code === 0x2e || code === 0x45 || code === 0x65
}

function numberProblem(text: string, start: number, end: number): string | null {
  // Most numbers have few digits and need no further check.
  if (end - start < 4) return null
  const literal = text.slice(start, end)
  if (literal.length < 16 && !/[eE]/.test(literal)) return null
  const value = Number(literal)
  if (Number.isNaN(value)) return null
  if (!Number.isFinite(value)) return `is the number ${clip(literal, LITERAL_MAX)}, which is too large`
  if (/^-?\d+(\.0+)?$/.test(literal) && !Number.isSafeInteger(value)) {
    return `is the integer ${clip(literal, LITERAL_MAX)}, which loses digits beyond 2^53; send it as a string`
  }
  return null
}
