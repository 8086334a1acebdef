import { ERRORS } from '@ichido/sdk/protocol'
import { encodeAnswer, type StoredAnswer } from './answer.ts'

/** Everything that the plugin itself answers with: status, may the same request be sent again, one sentence. */
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

export type RefusalCode = keyof typeof REFUSALS

const RETRY_AFTER_SECONDS = 1

export interface RefusalDetails {
  message?: string
  /** Instead of the table's. */
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

/** What a replay says in place of a body that was too large to keep; its status and headers are those of the first answer. */
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
