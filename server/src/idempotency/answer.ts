import { validateHeaderName, validateHeaderValue } from 'node:http'

/** The answer of a section of `withKey` or of a `recover` hook: an object or array becomes JSON, text and bytes stay as they are. */
export interface Answer {
  status: number
  headers?: Readonly<Record<string, string>>
  body?: unknown
}

/** An answer as it goes over the wire and into the table; `body` is null when it was too large to keep. */
export interface StoredAnswer {
  status: number
  headers: [name: string, value: string][]
  body: Uint8Array | null
}

/**
 * What becomes of a key by the status of its answer:
 * - `store`: the answer is kept, and replayed.
 * - `release`: the request was turned away before it did anything; the same key may try again.
 * - `doubt`: nobody knows how far it came. With a shared transaction it was rolled back, and the key is released.
 */
export type Fate = 'store' | 'release' | 'doubt'

const TURNED_AWAY: readonly number[] = [401, 403, 429]
const REQUEST_TIMEOUT = 408

export function fateOf(status: number): Fate {
  if (TURNED_AWAY.includes(status)) return 'release'
  // A 408 of a middleware says that it gave up waiting, not that the handler did nothing.
  return status >= 500 || status === REQUEST_TIMEOUT ? 'doubt' : 'store'
}

/** Only ever said by the plugin: whatever a client or a handler puts there is dropped. */
export const REPLAYED = 'idempotent-replayed'

const STATUS_MIN = 200
const STATUS_MAX = 599

export function encodeAnswer({ status, headers, body }: Answer): StoredAnswer {
  if (!Number.isInteger(status) || status < STATUS_MIN || status > STATUS_MAX) {
    throw new TypeError(`status must be an integer from ${STATUS_MIN} to ${STATUS_MAX}, not ${String(status)}`)
  }
  const named = Object.entries(headers ?? {})
    .map(([name, value]): [string, string] => [name.toLowerCase(), String(value)])
    .filter(([name]) => name !== REPLAYED)
  for (const [name, value] of named) {
    validateHeaderName(name)
    validateHeaderValue(name, value)
  }
  const { bytes, type } = encodeBody(body)
  if (type !== null && !named.some(([name]) => name === 'content-type')) named.push(['content-type', type])
  return { status, headers: named, body: bytes }
}

function encodeBody(body: unknown): { bytes: Uint8Array; type: string | null } {
  if (body === undefined) return { bytes: new Uint8Array(), type: null }
  if (body instanceof Uint8Array) return { bytes: body, type: 'application/octet-stream' }
  if (typeof body === 'string') return { bytes: Buffer.from(body), type: 'text/plain; charset=utf-8' }
  const text = JSON.stringify(body)
  if (text === undefined) throw new TypeError(`body must be JSON, text or bytes, not ${typeof body}`)
  return { bytes: Buffer.from(text), type: 'application/json; charset=utf-8' }
}

/** Say something of one body, and nothing of another that takes its place. */
export const OF_THE_BODY = ['content-type', 'content-encoding', 'content-length', 'transfer-encoding', 'etag']

/** Kept with every body, for without them its bytes cannot be read. */
const WITH_THE_BODY = ['content-type', 'content-encoding']

/** Where things are, which version, what follows: what a client acts on. Never cookies, dates, or who served it. */
export const KEPT_HEADERS = ['location', 'content-location', 'etag', 'last-modified', 'link', 'content-language']

export function keptHeaders(headers: StoredAnswer['headers'], chosen: readonly string[]): StoredAnswer['headers'] {
  return headers.filter(([name]) => WITH_THE_BODY.includes(name) || chosen.includes(name))
}
