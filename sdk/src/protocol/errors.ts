import type { JobState } from './jobs.ts'

/**
 * Every error of Ichido, in one table for the server, the SDK and the docs.
 *
 * `retryable` is the value of the `Should-Retry` header: whether the same request may succeed later.
 */
export const ERRORS = {
  INVALID_PAYLOAD: {
    status: 400,
    retryable: false,
    sentence: 'The request is malformed; the message names the field.',
  },
  KEY_CONFLICT: {
    status: 400,
    retryable: false,
    sentence: 'The Idempotency-Key header and idempotency_key in the body differ.',
  },
  UNAUTHENTICATED: { status: 401, retryable: false, sentence: 'The token is missing, unknown, expired or revoked.' },
  FORBIDDEN: {
    status: 403,
    retryable: false,
    sentence: 'The role does not allow this, or the worker is revoked or not enrolled for the queue.',
  },
  OPEN_MODE_REFUSED: {
    status: 403,
    retryable: false,
    sentence: 'Without tokens, the server only accepts direct calls from its own machine and pages.',
  },
  CSRF_REFUSED: {
    status: 403,
    retryable: false,
    sentence: 'With a session, the server only accepts calls from its own pages.',
  },
  NOT_FOUND: { status: 404, retryable: false, sentence: 'It does not exist, or the caller may not see it.' },
  METHOD_NOT_ALLOWED: { status: 405, retryable: false, sentence: 'This path does not take this method.' },
  REQUEST_TIMEOUT: {
    status: 408,
    retryable: true,
    sentence: 'The request did not arrive in time; nothing was done.',
  },
  IDEMPOTENCY_KEY_REUSED: {
    status: 409,
    retryable: false,
    sentence: 'The key was used with a different request; use a new key, or repeat the first request.',
  },
  IDEMPOTENCY_IN_PROGRESS: {
    status: 409,
    retryable: true,
    sentence: 'The first request with this key has no answer yet; try again later.',
  },
  QUOTA_EXCEEDED: {
    status: 409,
    retryable: false,
    sentence: 'The user has reached the quota of jobs, reservations or bytes.',
  },
  COST_LIMIT_EXCEEDED: {
    status: 409,
    retryable: false,
    sentence: 'The estimated cost exceeds what is left of the limit.',
  },
  MAXIMUM_REACHED: { status: 409, retryable: false, sentence: 'A maximum is reached; the message names it.' },
  RESERVATION_NOT_ACTIVE: {
    status: 409,
    retryable: false,
    sentence: 'The reservation was consumed, released or has expired.',
  },
  ALREADY_ENDED: {
    status: 409,
    retryable: false,
    sentence: 'The job has ended; its outcome can no longer change.',
  },
  NOT_ENDED: {
    status: 409,
    retryable: false,
    sentence: 'Only a job that ended without success can be retried.',
  },
  ALREADY_REPLACED: {
    status: 409,
    retryable: false,
    sentence: 'Another job replaced this one; retry that job instead.',
  },
  KEY_TAKEN: {
    status: 409,
    retryable: false,
    sentence: 'The key of this job names another job now.',
  },
  SETTING_FIXED: {
    status: 409,
    retryable: false,
    sentence: 'The environment of the node fixes the setting; change it there.',
  },
  DEFINITION_EXISTS: {
    status: 409,
    retryable: false,
    sentence: 'The name is taken; replace the definition, or choose another name.',
  },
  VERSION_CONFLICT: {
    status: 409,
    retryable: false,
    sentence: 'The definition has changed; details have its version.',
  },
  OUTCOME_ALREADY_RECORDED: {
    status: 409,
    retryable: false,
    sentence: 'Another outcome was accepted for this run first.',
  },
  LEASE_LOST: {
    status: 409,
    retryable: false,
    sentence: 'The caller does not hold this lease, and must stop the run.',
  },
  NOT_ASSIGNED: {
    status: 409,
    retryable: false,
    sentence: 'Another process of this worker started the run.',
  },
  NOT_STARTED: {
    status: 409,
    retryable: false,
    sentence: 'Start the run before you report on it.',
  },
  VERSION_MISMATCH: { status: 409, retryable: false, sentence: 'The run has changed.' },
  EPOCH_MISMATCH: {
    status: 409,
    retryable: false,
    sentence: 'The run was started under another leader.',
  },
  NOT_DUE: { status: 409, retryable: true, sentence: 'The run may not be leased before its run_at.' },
  RESULT_NOT_READY: {
    status: 409,
    retryable: true,
    sentence: 'The job has not ended; it has no result yet.',
  },
  JOB_FAILED: { status: 409, retryable: false, sentence: 'The job ended without a result; details say how.' },
  ARTIFACT_NOT_READY: { status: 409, retryable: true, sentence: 'The artifact has not been sent yet.' },
  ARTIFACT_CONFLICT: {
    status: 409,
    retryable: false,
    sentence: 'An artifact of this name exists with other content.',
  },
  UPLOAD_OFFSET_MISMATCH: {
    status: 409,
    retryable: false,
    sentence: 'The upload must continue at another offset; details have it.',
  },
  PAYLOAD_TOO_LARGE: {
    status: 413,
    retryable: false,
    sentence: 'The request or a part of it is larger than allowed.',
  },
  UNSUPPORTED_MEDIA_TYPE: {
    status: 415,
    retryable: false,
    sentence: 'Send JSON, with Content-Type: application/json.',
  },
  RANGE_NOT_SATISFIABLE: {
    status: 416,
    retryable: false,
    sentence: 'The artifact has no bytes in this range.',
  },
  HEADERS_TOO_LARGE: { status: 431, retryable: false, sentence: 'The request headers are larger than allowed.' },
  RATE_LIMITED: { status: 429, retryable: true, sentence: 'Too many requests; wait as long as Retry-After says.' },
  INTERNAL: {
    status: 500,
    retryable: true,
    sentence: 'The server failed; its log has the cause under the request id.',
  },
  ARTIFACTS_OFF: {
    status: 503,
    retryable: true,
    sentence: 'This node stores no artifacts: set ARTIFACTS_DIR, or see the log.',
  },
  LOG_UNAVAILABLE: {
    status: 503,
    retryable: true,
    sentence: 'The archived log is missing or unreadable; the message names it.',
  },
  STORE_FULL: {
    status: 503,
    retryable: true,
    sentence: 'The disk that the message names is full; free space on it.',
  },
  UNAVAILABLE: {
    status: 503,
    retryable: true,
    sentence: 'The store is down or the server is stopping; send the request again.',
  },
} as const satisfies Record<string, { status: number; retryable: boolean; sentence: string }>

/** The code of an error answer. */
export type ErrorCode = keyof typeof ERRORS

/** The body of every error answer. */
export interface ErrorBody {
  error: { code: ErrorCode; message: string; details: Record<string, unknown>; request_id: string }
}

/** The retry headers of an error answer. */
export interface ErrorAdvice {
  /** `Should-Retry`. */
  shouldRetry?: boolean | undefined
  /** `Retry-After`, from when the answer came. */
  retryAfterMs?: number | undefined
}

/** An error answer as an exception. The server throws it to answer with it; the SDK throws it for such an answer. */
export class IchidoError extends Error {
  override readonly name: string = 'IchidoError'
  /** The code in the table of errors. */
  readonly code: ErrorCode
  /** Facts about the refusal, such as `field` or `job_id`. */
  readonly details: Record<string, unknown>
  /** `Should-Retry` of the answer. */
  readonly shouldRetry: boolean | undefined
  /** `Retry-After` of the answer. */
  readonly retryAfterMs: number | undefined

  constructor(
    code: ErrorCode,
    message: string = ERRORS[code].sentence,
    details: Record<string, unknown> = {},
    { shouldRetry, retryAfterMs }: ErrorAdvice = {},
  ) {
    super(message)
    this.code = code
    this.details = details
    this.shouldRetry = shouldRetry
    this.retryAfterMs = retryAfterMs
  }

  /** The HTTP status of the code. */
  get status(): number {
    return ERRORS[this.code].status
  }

  /** Whether the same request may succeed later, by the code. */
  get retryable(): boolean {
    return ERRORS[this.code].retryable
  }
}

interface CodedMessage {
  code: string
  message: string
}

/** The text of an error, with its code only once: some messages begin with the code, and some errors have only a code. */
export function errorText({ code, message }: CodedMessage): string {
  return message === code || message.startsWith(`${code}:`) ? message : `${code}: ${message}`
}

/** Why a job or run ended in this state; null if the state needs no reason, like CANCELED. */
export function reasonText(state: JobState, error: CodedMessage | null): string | null {
  if (error === null || (state === 'CANCELED' && error.code === state)) return null
  if (error.code !== state) return errorText(error)
  return error.message === error.code ? null : error.message
}

/** The sentence after a job's name that says how it ended without a result. */
export function endText(state: JobState, error: CodedMessage | null): string {
  const reason = reasonText(state, error)
  const end = state === 'CANCELED' ? 'was canceled' : `ended ${state}`
  return reason === null ? end : `${end}: ${reason}`
}
