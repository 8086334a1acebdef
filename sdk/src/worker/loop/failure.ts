import { InvalidValue } from '../../client/errors.ts'
import { ERROR_MESSAGE_MAX, ERROR_TRACEBACK_MAX, IchidoError, type LeaseShape } from '../../protocol/index.ts'
import type { FailReport } from './ports.ts'
import { Stopped } from './run-stop.ts'

/**
 * Thrown by a handler to fail the job without retries.
 *
 * @example
 * throw new Fatal('NO_SUCH_IMAGE', 'The image does not exist')
 */
export class Fatal extends Error {
  override readonly name = 'Fatal'
  /** The code of the failure. */
  readonly code: string

  constructor(code: string, message: string = code) {
    super(message)
    this.code = code
  }
}

/** Also recognizes the class of another copy of this module, because the agent's single file has its own. */
export function isFatal(error: unknown): error is Fatal {
  if (error instanceof Fatal) return true
  return error instanceof Error && error.name === 'Fatal' && 'code' in error && typeof error.code === 'string'
}

/** A longer code is cut, so that its length never prevents the report. */
export const CODE_MAX = 128
export const MESSAGE_MAX = ERROR_MESSAGE_MAX
/** An error may be its own cause. */
const CAUSES_MAX = 10

/** The report for an error that a handler threw. `stopped` is the reason why its run was told to stop, if it was. */
export function toFailure(error: unknown, stopped: Stopped | undefined): FailReport {
  if (isFatal(error)) return failure(error, error.code, false)
  if (stopped) {
    const { code, message } = stopped
    return { code, message, retryable: true }
  }
  // A value that does not match its schema will not match it on a retry.
  if (error instanceof InvalidValue) return failure(error, 'INVALID_VALUE', false)
  return failure(error, codeOf(error), true)
}

export function failure(error: unknown, code: string, retryable: boolean): FailReport {
  const message = messageOf(error)
  const report = { code: clean(code, CODE_MAX), message: clean(message || code, MESSAGE_MAX), retryable }
  const traceback = tracebackOf(error)
  return traceback === undefined ? report : { ...report, traceback: clean(traceback, ERROR_TRACEBACK_MAX) }
}

/** The code of a system, database or library (ENOENT, 23505, QUOTA_EXCEEDED) says more than the class of the error. */
function codeOf(error: unknown): string {
  const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : undefined
  if (typeof code === 'string' && /^[A-Z0-9_]+$/.test(code)) return code
  return (error instanceof Error && error.name) || 'ERROR'
}

/** The message of anything that can be thrown; never throws. */
export function messageOf(error: unknown): string {
  if (error instanceof Error) return error.message
  try {
    const text = String(error)
    return text.startsWith('[object ') ? (JSON.stringify(error) ?? text) : text
  } catch {
    return Object.prototype.toString.call(error)
  }
}

/** The stack with its causes, as Node prints it. */
function tracebackOf(error: unknown): string | undefined {
  if (!(error instanceof Error) || error.stack === undefined) return undefined
  let text = error.stack
  let { cause } = error
  for (let depth = 0; cause !== undefined && depth < CAUSES_MAX; depth++) {
    const stack = (cause instanceof Error && cause.stack) || ''
    // Not every browser begins a stack with the message.
    const shown = stack.includes(messageOf(cause)) ? stack : `${messageOf(cause)}\n${stack}`.trimEnd()
    text += `\nCaused by: ${shown}`
    cause = cause instanceof Error ? cause.cause : undefined
  }
  return text
}

/** Removes NUL and half characters, which cannot be stored. */
export function clean(text: string, max: number): string {
  return text.slice(0, max).replaceAll('\0', '').toWellFormed()
}

export function overrun(lease: LeaseShape): Error {
  return new Error(`The handler of ${lease.kind} ignored its signal and still runs: ${which(lease)}`)
}

export function leftBehind(lease: LeaseShape): Error {
  return new Error(`Closed, but the handler of ${lease.kind} ignored its signal and still runs: ${which(lease)}`)
}

export function unreported(lease: LeaseShape): Error {
  return new Error(`Closed, but the outcome of a run of ${lease.kind} was not delivered: ${which(lease)}`)
}

function which({ job_id: jobId, attempt }: LeaseShape): string {
  return `job ${jobId}, attempt ${attempt}`
}

/** Whether a later call may succeed. An unknown token counts, because it may be renewed. */
export function isPassing(error: unknown): boolean {
  return error instanceof IchidoError && (error.retryable || error.code === 'UNAUTHENTICATED')
}

export function refused(error: unknown): FailReport {
  return failure(error, error instanceof IchidoError ? error.code : 'RESULT_REFUSED', false)
}

export function stopping(): Stopped {
  return new Stopped('STOPPED', 'The worker is stopping')
}
