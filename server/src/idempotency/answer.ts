import { validateHeaderName, validateHeaderValue } from 'node:http'
import { ERRORS } from '@ichido/sdk/protocol'

/** The plugin's own answers. */
export const REFUSALS = {
  INVALID_PAYLOAD: { status: 400, retryable: false, sentence: 'The Idempotency-Key header is missing or malformed.' },
  PAYLOAD_TOO_LARGE: {
    status: 413,
    retryable: false,
    sentence: 'The request body is larger than the plugin compares (requestMaxBytes).',
  },
  IDEMPOTENCY_KEY_REUSED: ERRORS.IDEMPOTENCY_KEY_REUSED,
  IDEMPOTENCY_IN_PROGRESS: ERRORS.IDEMPOTENCY_IN_PROGRESS,
  IDEMPOTENCY_IN_DOUBT: {
    status: 409,
    retryable: false,
    sentence:
      'The first request with this key broke off, and it is not known whether it took effect. Check that; if it did not, use a new key.',
  },
  IDEMPOTENCY_STREAM_REFUSED: {
    status: 500,
    retryable: false,
    sentence: 'The handler answered with an event stream, which cannot be stored and replayed.',
  },
  INTERNAL: { status: 500, retryable: true, sentence: 'The handler failed, or its key could not be looked up.' },
} as const

type RefusalCode = keyof typeof REFUSALS

const RETRY_AFTER_SECONDS = 1

/** The answer of a section of `withKey` or of a `recover` hook. */
export interface Answer {
  /** An HTTP status from 200 to 599. */
  status: number
  /** Headers of the answer; only the kept ones are replayed. */
  headers?: Readonly<Record<string, string>>
  /** An object or array becomes JSON; text and bytes stay as they are. */
  body?: unknown
}

/** An answer as it is sent and stored; `body` is null if it was too large to keep. */
export interface StoredAnswer {
  status: number
  headers: [name: string, value: string][]
  body: Uint8Array | null
}

/**
 * The fate of a key, by the status of its answer:
 * - `store`: the answer is kept and replayed.
 * - `release`: the request was refused before it did anything; the same key may try again.
 * - `doubt`: it is unknown how far it got. With a shared transaction it was rolled back, and the key is released.
 */
export type Fate = 'store' | 'release' | 'doubt'

const REFUSED_STATUSES: readonly number[] = [401, 403, 429]
const REQUEST_TIMEOUT = 408

export function fateOf(status: number): Fate {
  if (REFUSED_STATUSES.includes(status)) return 'release'
  // A middleware's 408 means that it stopped waiting; the handler may still have acted.
  return status >= 500 || status === REQUEST_TIMEOUT ? 'doubt' : 'store'
}

/** Set only by the plugin; values of clients and handlers are removed. */
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

/** Headers that describe a body, and do not apply to another one. */
export const BODY_HEADERS = ['content-type', 'content-encoding', 'content-length', 'transfer-encoding', 'etag']

/** Kept with every body, because its bytes cannot be read without them. */
const ALWAYS_KEPT = ['content-type', 'content-encoding']

/** Headers that a client acts on; never cookies, dates or server names. */
export const KEPT_HEADERS = ['location', 'content-location', 'etag', 'last-modified', 'link', 'content-language']

export function keptHeaders(headers: StoredAnswer['headers'], chosen: readonly string[]): StoredAnswer['headers'] {
  return headers.filter(([name]) => ALWAYS_KEPT.includes(name) || chosen.includes(name))
}

interface RefusalDetails {
  message?: string
  /** Overrides the status of the table. */
  status?: number
  field?: string
}

export function refuse(code: RefusalCode, { message, status, field }: RefusalDetails = {}): StoredAnswer {
  const known = REFUSALS[code]
  const details = field === undefined ? {} : { field }
  const headers: Record<string, string> = { 'should-retry': String(known.retryable) }
  if (code === 'IDEMPOTENCY_IN_PROGRESS') headers['retry-after'] = String(RETRY_AFTER_SECONDS)
  return encodeAnswer({
    status: status ?? known.status,
    headers,
    body: { error: { code, message: message ?? known.sentence, details } },
  })
}

/** The body of a replay whose body was too large to keep; status and headers are those of the first answer. */
export const bodyNotKept = (): Uint8Array =>
  Buffer.from(
    JSON.stringify({
      error: {
        code: 'IDEMPOTENT_BODY_NOT_KEPT',
        message:
          'The request ran once, with this status. Its answer was too large to store; read the result with another request.',
        details: {},
      },
    }),
  )
