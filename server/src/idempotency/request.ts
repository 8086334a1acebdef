import { hash } from 'node:crypto'
import { parseStrictJson } from '../core/json/strict-json.ts'
import { type KeyParse, parseKeyHeader, requestHash } from '../core/keys/key.ts'

/** What of a request decides whether a key comes back with the same one. */
export interface Asked {
  method: string
  /** Path with its parameters and query string, as sent. */
  target: string
  contentType: string
  /** The bytes; or what an earlier parser of the application left of them. */
  body: Uint8Array | { parsed: unknown }
}

export function hashOf({ method, target, contentType, body }: Asked): string {
  const type = (contentType.split(';')[0] ?? '').trim().toLowerCase()
  return requestHash({ method, target, type, body: bodyForm(body, type) })
}

/** JSON by its value, so that the order of its members makes no difference; all else, and what is no plain JSON, by its bytes. */
function bodyForm(body: Asked['body'], type: string): unknown {
  if (body instanceof Uint8Array) {
    return bytesForm(body, type === 'application/json' || type.endsWith('+json'))
  }
  const { parsed } = body
  if (parsed instanceof Uint8Array) return bytesForm(parsed, false)
  if (typeof parsed === 'string') return bytesForm(Buffer.from(parsed), false)
  return bytesForm(Buffer.from(JSON.stringify(parsed) ?? ''), true)
}

function bytesForm(bytes: Uint8Array, json: boolean): unknown {
  if (bytes.length === 0) return null
  const parse = json ? parseStrictJson(Buffer.from(bytes).toString('utf8')) : null
  return parse?.ok ? { json: parse.value } : { sha256: hash('sha256', bytes, 'hex') }
}

/** Of a header that came twice, both Node and fetch make one value with a comma and a space, which no key may hold. */
export function parseHeader(header: string): KeyParse {
  const parse = parseKeyHeader(header)
  if (!parse.ok && header.includes(', ')) return { ok: false, problem: 'must be sent once, not several times' }
  return parse
}
