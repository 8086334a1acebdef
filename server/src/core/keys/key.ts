import { hash } from 'node:crypto'

/**
 * Idempotency keys: 1 to 256 visible ASCII characters. A header may be bare or a quoted RFC 8941 string;
 * both name the same key, because proxies and client libraries differ in which they send.
 */
export const KEY_MAX_LENGTH = 256

export type KeyParse = { ok: true; key: string } | { ok: false; problem: string }

/** Takes any value of a caller: a number would become a different key in each database. */
export function parseKey(text: unknown): KeyParse {
  if (typeof text !== 'string') return { ok: false, problem: 'must be a string' }
  if (text.length === 0) return { ok: false, problem: 'must not be empty' }
  if (text.length > KEY_MAX_LENGTH) {
    return { ok: false, problem: `must have at most ${KEY_MAX_LENGTH} characters, has ${text.length}` }
  }
  for (let i = 0; i < text.length; i++) {
    const code = text.charCodeAt(i)
    if (code < 0x21 || code > 0x7e) {
      const place = `character ${i + 1} is U+${(text.codePointAt(i) ?? code).toString(16).toUpperCase().padStart(4, '0')}`
      return { ok: false, problem: `must be visible ASCII (letters, digits and punctuation, no spaces); ${place}` }
    }
  }
  return { ok: true, key: text }
}

export function parseKeyHeader(header: string): KeyParse {
  const text = header.trim()
  if (!text.startsWith('"')) return parseKey(text)
  let key = ''
  for (let i = 1; i < text.length; i++) {
    let char = text[i]
    if (char === '"') return i === text.length - 1 ? parseKey(key) : { ok: false, problem: quoteProblem(text) }
    if (char === '\\') {
      i++
      char = text[i]
      if (char !== undefined && char !== '"' && char !== '\\') {
        return { ok: false, problem: 'may only escape a quote or a backslash' }
      }
    }
    key += char
  }
  return { ok: false, problem: 'has an opening quote without a closing one' }
}

/** Says whether a quote inside is a part of the key, or its end before parameters of RFC 8941. */
function quoteProblem(text: string): string {
  return text.endsWith('"') ? 'has a quote inside that is not escaped' : 'has characters after its closing quote'
}

/**
 * The hash shows whether a key is repeated with the same request. It is the SHA-256 of the RFC 8785 form, so neither
 * the order of JSON keys nor `1` against `1.0` makes a difference. Its version is stored beside it: hashes of different
 * versions cannot be compared, and then the key alone decides.
 */
export const REQUEST_HASH_VERSION = 1

export function requestHash(request: unknown): string {
  return hash('sha256', canonicalJson(request), 'hex')
}

/**
 * Writes a JSON value as RFC 8785: the order of members and the spelling of numbers make no difference. JavaScript
 * writes strings and numbers as the RFC asks, and sorts names by UTF-16 units, as the RFC does.
 */
function canonicalJson(value: unknown): string {
  if (typeof value === 'object' && value !== null) {
    if (Array.isArray(value)) return `[${value.map(canonicalJson).join(',')}]`
    if ('toJSON' in value && typeof value.toJSON === 'function') return canonicalJson(value.toJSON())
    return canonicalObject(value as Record<string, unknown>)
  }
  const text = JSON.stringify(value)
  const lossy = typeof value === 'number' ? !Number.isFinite(value) : typeof value === 'string' && !value.isWellFormed()
  if (text === undefined || lossy) throw new TypeError(`${String(value)} is not a JSON value`)
  return text
}

function canonicalObject(object: Record<string, unknown>): string {
  let text = ''
  for (const name of Object.keys(object).sort()) {
    const value = object[name]
    if (value !== undefined) text += `${text === '' ? '' : ','}${canonicalJson(name)}:${canonicalJson(value)}`
  }
  return `{${text}}`
}
