import { type ErrorAdvice, endText, IchidoError, type JobState, type RunErrorShape } from '../protocol/index.ts'

/** Nobody answered, or the answer broke off: what was asked may have been done all the same. */
export class NoAnswer extends Error {
  override readonly name = 'NoAnswer'
}

/** Of a proxy, say, or of the page on which a network asks its guests to log in. */
export class ForeignAnswer extends Error {
  override readonly name = 'ForeignAnswer'
  readonly status: number
  readonly shouldRetry: boolean | undefined
  readonly retryAfterMs: number | undefined

  constructor(status: number, text: string, { shouldRetry, retryAfterMs }: ErrorAdvice = {}) {
    super(`The server answered ${status} with something that is not Ichido's: ${text.slice(0, 200)}`)
    this.status = status
    this.shouldRetry = shouldRetry
    this.retryAfterMs = retryAfterMs
  }
}

/** The user has as many active jobs and reservations as its quota allows. */
export class QuotaExceeded extends IchidoError {
  override readonly name = 'QuotaExceeded'
}

/** The estimated cost would pass the user's cost limit. */
export class CostLimit extends IchidoError {
  override readonly name = 'CostLimit'
}

/** The key stands for another request; `details.job_id` is the job that it names. */
export class KeyReused extends IchidoError {
  override readonly name = 'KeyReused'
}

/** A payload or a result that does not fit its schema, or that JSON cannot hold; the message begins with where in it. */
export class InvalidValue extends Error {
  override readonly name = 'InvalidValue'
}

/** It may pass by itself. A submission can be sent again with this key, and is one job. */
export class Transient extends IchidoError {
  override readonly name: string = 'Transient'
  /** Of the submission, given or made for it; undefined for other calls. */
  readonly key: string | undefined

  constructor(cause: Error, key: string | undefined, before = '') {
    const known = cause instanceof IchidoError ? cause : undefined
    const after =
      key === undefined ? '' : `. The job may have been created: submitted again with the key ${key} it is one job`
    const advice = cause instanceof ForeignAnswer ? cause : known
    super(known?.code ?? 'UNAVAILABLE', `${before}${cause.message}${after}`, known?.details, advice)
    this.key = key
    this.cause = cause
  }
}

/** It was tried as often, or for as long, as it may be; `cause` is what came of the last try. */
export class MaxRetriesExceeded extends Transient {
  override readonly name = 'MaxRetriesExceeded'
  readonly tries: number

  constructor(cause: Error, key: string | undefined, tries: number) {
    super(cause, key, `Gave up after ${tries} tries: `)
    this.tries = tries
  }
}

/**
 * The job ended without a result. No IchidoError: the call went through, and the codes are those of the job's own code, which
 * may well be called as one of ours.
 */
export class JobFailed extends Error {
  override readonly name = 'JobFailed'
  /** The code of the failure: from `throw new Fatal(code)`, from a system error, or `TIMEOUT`, `WORKER_LOST` and the like. */
  readonly code: string
  readonly state: JobState
  readonly jobId: string
  /** The failure as it is stored, with the traceback of what was thrown. */
  readonly failure: RunErrorShape | null

  constructor(jobId: string, state: JobState, failure: RunErrorShape | null) {
    super(`Job ${jobId} ${endText(state, failure)}`)
    this.code = failure?.code ?? state
    this.state = state
    this.jobId = jobId
    this.failure = failure
  }
}

/** Somebody canceled the job, so it has no result. */
export class JobCanceled extends Error {
  override readonly name = 'JobCanceled'
  readonly code = 'CANCELED'
  readonly jobId: string

  constructor(jobId: string) {
    super(`Job ${jobId} was canceled`)
    this.jobId = jobId
  }
}

/** Turns the server's answer for a job without a result into `JobFailed` or `JobCanceled`. */
export function withoutResult(jobId: string, { details }: IchidoError): JobFailed | JobCanceled {
  // The answer is trusted to have the shape that the API's description gives it.
  const { state, error } = details as { state: JobState; error: RunErrorShape | null }
  return state === 'CANCELED' ? new JobCanceled(jobId) : new JobFailed(jobId, state, error)
}

/** fetch wraps what went wrong in "fetch failed", and where a name has several addresses only the code tells. */
export function innermost(error: unknown): string {
  if (!(error instanceof Error)) return String(error)
  if (error.cause !== undefined) return innermost(error.cause)
  const code = 'code' in error && typeof error.code === 'string' ? error.code : ''
  return error.message.includes(code) ? error.message : `${error.message} (${code})`.trim()
}

/** A refusal as the class that stands for its code. */
export function refusal(error: unknown): unknown {
  if (!(error instanceof IchidoError) || error.constructor !== IchidoError) return error
  const Refusal = REFUSALS[error.code]
  return Refusal === undefined ? error : new Refusal(error.code, error.message, error.details, error)
}

const REFUSALS: Readonly<Record<string, typeof IchidoError>> = {
  QUOTA_EXCEEDED: QuotaExceeded,
  COST_LIMIT_EXCEEDED: CostLimit,
  IDEMPOTENCY_KEY_REUSED: KeyReused,
}
