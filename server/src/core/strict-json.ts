/**
 * What `JSON.parse` lets through and Ichido does not, because it would be stored as something else than was sent:
 * two members of one name (the first would vanish), integers beyond 2^53 (digits would change), numbers that
 * overflow, lone surrogates and NUL (PostgreSQL cannot hold them), `__proto__` (poisons whoever merges it), and
 * nesting that would exhaust a stack. RFC 7493 (I-JSON) asks senders for the same.
 */
export const JSON_MAX_DEPTH = 64

export type JsonProblem = { message: string; offset: number }

const QUOTE = 0x22
const BACKSLASH = 0x5c

/** Looks at text that may be JSON; null when nothing speaks against parsing it. */
export function findJsonProblem(text: string, maxDepth = JSON_MAX_DEPTH): JsonProblem | null {
  /** One entry for each open bracket: the names seen so far in an object, null for an array. */
  const open: (Set<string> | null)[] = []
  let expectsName = false
  let i = 0
  while (i < text.length) {
    const code = text.charCodeAt(i)
    switch (code) {
      case 0x7b: // {
      case 0x5b: // [
        if (open.length === maxDepth) return { message: `is nested more than ${maxDepth} levels deep`, offset: i }
        open.push(code === 0x7b ? new Set() : null)
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
        expectsName = open.at(-1) instanceof Set
        i++
        break
      case QUOTE: {
        const end = endOfString(text, i)
        if (end === -1) return null
        const problem = stringProblem(text, i, end)
        if (problem !== null) return problem
        const names = open.at(-1)
        if (expectsName && names instanceof Set) {
          const name = stringValue(text, i, end)
          if (name === undefined) return null
          if (name === '__proto__') return { message: 'has a member named "__proto__"', offset: i }
          if (names.has(name)) return { message: `has the member ${JSON.stringify(name)} twice`, offset: i }
          names.add(name)
          expectsName = false
        }
        i = end + 1
        break
      }
      default:
        if (code === 0x2d || (code >= 0x30 && code <= 0x39)) {
          const end = endOfNumber(text, i)
          const problem = numberProblem(text.slice(i, end))
          if (problem !== null) return { message: problem, offset: i }
          i = end
        } else i++
    }
  }
  return null
}

export type JsonParse = { ok: true; value: unknown } | { ok: false; problem: string }

export function parseStrictJson(text: string, maxDepth = JSON_MAX_DEPTH): JsonParse {
  const problem = findJsonProblem(text, maxDepth)
  if (problem !== null) return { ok: false, problem: `${problem.message} (at offset ${problem.offset})` }
  try {
    return { ok: true, value: JSON.parse(text) as unknown }
  } catch (error) {
    return { ok: false, problem: `is not valid JSON: ${error instanceof Error ? error.message : String(error)}` }
  }
}

function endOfString(text: string, start: number): number {
  for (let i = start + 1; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code === BACKSLASH) i++
    else if (code === QUOTE) return i
  }
  return -1
}

function stringProblem(text: string, start: number, end: number): JsonProblem | null {
  let plain = true
  for (let i = start + 1; i < end; i++) {
    const code = text.charCodeAt(i)
    if (code === BACKSLASH || code >= 0xd800 || code === 0) {
      plain = false
      break
    }
  }
  if (plain) return null
  const value = stringValue(text, start, end)
  if (value === undefined) return null
  if (value.includes('\u0000')) return { message: 'has a NUL character in a string', offset: start }
  return value.isWellFormed() ? null : { message: 'has half of a surrogate pair in a string', offset: start }
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

function numberProblem(literal: string): string | null {
  if (literal.length < 16 && !/[eE]/.test(literal)) return null
  const value = Number(literal)
  if (Number.isNaN(value)) return null
  if (!Number.isFinite(value)) return `has the number ${clip(literal)}, which is too large`
  if (/^-?\d+(\.0+)?$/.test(literal) && !Number.isSafeInteger(value)) {
    return `has the integer ${clip(literal)}, which loses digits beyond 2^53; send it as a string`
  }
  return null
}

function clip(literal: string): string {
  return literal.length > 40 ? `${literal.slice(0, 37)}…` : literal
}
