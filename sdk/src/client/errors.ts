import { type ErrorAdvice, endText, IchidoError, type JobState, type RunErrorShape } from '../protocol/index.ts'

/** No answer came, or it broke off. The server may have executed the request. */
export class NoAnswer extends Error {
  override readonly name = 'NoAnswer'
}

/** The answer is not from Ichido but, for example, from a proxy or the login page of a network. */
export class ForeignAnswer extends Error {
  override readonly name = 'ForeignAnswer'
  /** The HTTP status of the answer. */
  readonly status: number
  /** `Should-Retry` of the answer. */
  readonly shouldRetry: boolean | undefined
  /** `Retry-After` of the answer. */
  readonly retryAfterMs: number | undefined

  constructor(status: number, text: string, { shouldRetry, retryAfterMs }: ErrorAdvice = {}) {
    super(`The server answered ${status} and the answer is not from Ichido: ${text.slice(0, 200)}`)
    this.status = status
    this.shouldRetry = shouldRetry
    this.retryAfterMs = retryAfterMs
  }
}

/** The user has reached the quota of active jobs and reservations. */
export class QuotaExceeded extends IchidoError {
  override readonly name = 'QuotaExceeded'
}

/** The estimated cost would exceed the user's cost limit. */
export class CostLimit extends IchidoError {
  override readonly name = 'CostLimit'
}

/** The key was used with a different request; `details.job_id` is the job that it names. */
export class KeyReused extends IchidoError {
  override readonly name = 'KeyReused'
}

/** A payload or a result does not match its schema, or JSON cannot hold it. The message begins with the place. */
export class InvalidValue extends Error {
  override readonly name = 'InvalidValue'
}

/** A temporary failure. A submission can be repeated with this key, and makes one job. */
export class Transient extends IchidoError {
  override readonly name: string = 'Transient'
  /** The key of the submission, given or generated; undefined for other calls. */
  readonly key: string | undefined

  constructor(cause: Error, key: string | undefined, before = '') {
    const known = cause instanceof IchidoError ? cause : undefined
    const after =
      key === undefined ? '' : `. The job may have been created; submit again with the key ${key} to get one job`
    const advice = cause instanceof ForeignAnswer ? cause : known
    super(known?.code ?? 'UNAVAILABLE', `${before}${cause.message}${after}`, known?.details, advice)
    this.key = key
    this.cause = cause
  }
}

/** All tries failed, or their time is up; `cause` is the error of the last try. */
export class MaxRetriesExceeded extends Transient {
  override readonly name = 'MaxRetriesExceeded'
  /** How many tries were made. */
  readonly tries: number

  constructor(cause: Error, key: string | undefined, tries: number) {
    super(cause, key, `Gave up after ${tries} tries: `)
    this.tries = tries
  }
}

/**
 * The job ended without a result. This is not an IchidoError: the call succeeded, and `code` comes from the job's own code, which
 * may use the same name as a code of Ichido.
 */
export class JobFailed extends Error {
  override readonly name = 'JobFailed'
  /** The code of the failure: from `throw new Fatal(code)`, from a system error, or `TIMEOUT`, `WORKER_LOST` and the like. */
  readonly code: string
  /** FAILED or TIMED_OUT. */
  readonly state: JobState
  /** The id of the job. */
  readonly jobId: string
  /** The stored failure, with the traceback of the thrown error. */
  readonly failure: RunErrorShape | null

  constructor(jobId: string, state: JobState, failure: RunErrorShape | null) {
    super(`Job ${jobId} ${endText(state, failure)}`)
    this.code = failure?.code ?? state
    this.state = state
    this.jobId = jobId
    this.failure = failure
  }
}

/** The job was canceled, so it has no result. */
export class JobCanceled extends Error {
  override readonly name = 'JobCanceled'
  readonly code = 'CANCELED'
  /** The id of the job. */
  readonly jobId: string

  constructor(jobId: string) {
    super(`Job ${jobId} was canceled`)
    this.jobId = jobId
  }
}

/** Turns the server's answer for a job without a result into `JobFailed` or `JobCanceled`. */
export function withoutResult(jobId: string, { details }: IchidoError): JobFailed | JobCanceled {
  // The server's answers are trusted to match the OpenAPI description.
  const { state, error } = details as { state: JobState; error: RunErrorShape | null }
  return state === 'CANCELED' ? new JobCanceled(jobId) : new JobFailed(jobId, state, error)
}

/** The message of the innermost cause: fetch wraps every error in "fetch failed", and some errors only have a code. */
export function innermost(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.cause !== undefined) return innermost(error.cause)
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
  return error.message.includes(code) ? error.message : `${error.message} (${code})`.trim()
}

/** Turns an IchidoError into the class for its code. */
export function refusal(error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.constructor !== IchidoError) return error
  const Refusal = REFUSALS[error.code]
  return Refusal === undefined ? error : new Refusal(error.code, error.message, error.details, error)
}

/** Renames the fields in a refusal to the library's names: `delay_seconds` becomes `delaySeconds`. */
export function inLibraryWords(error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.code !== 'INVALID_PAYLOAD') return error
  const { field } = error.details
  if (typeof field !== 'string' || CALLER_FIELDS.test(field)) return error
  return new IchidoError(error.code, renamed(error.message), { ...error.details, field: renamed(field) }, error)
}

/** Settles like the call, but with the library's names in a refusal. */
export async function worded<T>(call: Promise<T>): Promise<T> {
  try {
    return await call
  } catch (error) {
    throw inLibraryWords(error)
  }
}

const REFUSALS: Readonly<Record<string, typeof IchidoError>> = {
  QUOTA_EXCEEDED: QuotaExceeded,
  COST_LIMIT_EXCEEDED: CostLimit,
  IDEMPOTENCY_KEY_REUSED: KeyReused,
}

/** Wire names and the names of the library's options. */
const NAMES: Readonly<Record<string, string>> = {
  idempotency_key: 'key',
  dedupe_key: 'dedupeKey',
  run_at: 'runAt',
  delay_seconds: 'delaySeconds',
  callback_url: 'callbackUrl',
  max_attempts: 'maxAttempts',
  base_seconds: 'baseSeconds',
  cap_seconds: 'capSeconds',
  timeout_seconds: 'timeoutSeconds',
  lease_ttl_seconds: 'leaseTtlSeconds',
  continuation_seconds: 'continuationSeconds',
  seq_scope: 'seqScope',
  estimated_cost: 'estimatedCost',
  reservation_id: 'reservationId',
  key_ttl_hours: 'keyTtlHours',
  upload_ttl_seconds: 'uploadTtlSeconds',
  size_bytes: 'sizeBytes',
  ttl_seconds: 'ttlSeconds',
  job_id: 'jobId',
}
/** The caller chose the names inside these fields. */
const CALLER_FIELDS = /^(payload|labels|data)\b/

const renamed = (text: string) => text.replace(/\b[a-z]+_[a-z_]+\b/g, (name) => NAMES[name] ?? name)
