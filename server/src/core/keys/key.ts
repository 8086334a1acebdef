/**
 * Idempotency keys: 1 to 256 visible ASCII characters. A header may be bare or a quoted RFC 8941 string;
 * both name the same key, because proxies and client libraries differ in which they send.
 */
export const KEY_MAX_LENGTH = 256

export type KeyParse = { ok: true; key: string } | { ok: false; problem: string }

/** Of whatever a caller had: a number would be another key in each database. */
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

/** Of a quote with something behind it: a part of the key, or the end of it with RFC 8941's parameters. */
function quoteProblem(text: string): string {
  return text.endsWith('"') ? 'has a quote inside that is not escaped' : 'has characters after its closing quote'
}
