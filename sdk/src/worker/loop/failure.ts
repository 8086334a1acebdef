import { InvalidValue } from '../../client/errors.ts'
import { ERROR_MESSAGE_MAX, ERROR_TRACEBACK_MAX } from '../../protocol/index.ts'
import type { FailReport } from './transport.ts'

/** A handler throws it to say that a retry would not help. */
export class Fatal extends Error {
  override readonly name = 'Fatal'
  readonly code: string

  constructor(code: string, message: string = code) {
    super(message)
    this.code = code
  }
}

/** Also one of another copy of this module: the agent's single file has one of its own. */
export function isFatal(error: unknown): error is Fatal {
  if (error instanceof Fatal) return true
  return error instanceof Error && error.name === 'Fatal' && 'code' in error && typeof error.code === 'string'
}

/** Why the signal of a handler aborted. The run is reported with it if the handler gives up because of the signal. */
export class Stopped extends Error {
  override readonly name = 'Stopped'
  readonly code: 'STOPPED' | 'CANCELED' | 'TIMEOUT' | 'LEASE_LOST' | 'CONTINUATION_LOST'

  constructor(code: Stopped['code'], message: string) {
    super(message)
    this.code = code
  }
}

/** Longer ones are of no use to anybody, and must not be what keeps a failure from being recorded. */
export const CODE_MAX = 128
export const MESSAGE_MAX = ERROR_MESSAGE_MAX
/** One may be its own cause. */
const CAUSES_MAX = 10

/** What a handler threw, as it is reported. */
export function toFailure(error: unknown, signal: AbortSignal): FailReport {
  if (isFatal(error)) return failure(error, error.code, false)
  if (signal.aborted && signal.reason instanceof Stopped) {
    const { code, message } = signal.reason
    return { code, message, retryable: true }
  }
  // A value that does not fit its schema will not fit it next time either.
  if (error instanceof InvalidValue) return failure(error, 'INVALID_VALUE', false)
  return failure(error, codeOf(error), true)
}

export function failure(error: unknown, code: string, retryable: boolean): FailReport {
  const message = messageOf(error)
  const report = { code: clean(code, CODE_MAX), message: clean(message || code, MESSAGE_MAX), retryable }
  const traceback = tracebackOf(error)
  return traceback === undefined ? report : { ...report, traceback: clean(traceback, ERROR_TRACEBACK_MAX) }
}

/** ENOENT, 23505, QUOTA_EXCEEDED: what systems, databases and libraries call an error tells more than its class. */
function codeOf(error: unknown): string {
  const code = typeof error === 'object' && error !== null && 'code' in error ? error.code : undefined
  if (typeof code === 'string' && /^[A-Z0-9_]+$/.test(code)) return code
  return (error instanceof Error && error.name) || 'ERROR'
}

/** Of anything that can be thrown; never throws itself. */
export function messageOf(error: unknown): string {
  if (error instanceof Error) return error.message
  try {
    const text = String(error)
    return text.startsWith('[object ') ? (JSON.stringify(error) ?? text) : text
  } catch {
    return Object.prototype.toString.call(error)
  }
}

/** With what led to it, as Node prints it. */
function tracebackOf(error: unknown): string | undefined {
  if (!(error instanceof Error) || error.stack === undefined) return undefined
  let text = error.stack
  let { cause } = error
  for (let depth = 0; cause !== undefined && depth < CAUSES_MAX; depth++) {
    const stack = (cause instanceof Error && cause.stack) || ''
    // Not every browser begins a stack with the message.
    const said = stack.includes(messageOf(cause)) ? stack : `${messageOf(cause)}\n${stack}`.trimEnd()
    text += `\nCaused by: ${said}`
    cause = cause instanceof Error ? cause.cause : undefined
  }
  return text
}

/** NUL cannot be stored, nor can half a character, which is what cutting text often leaves behind. */
export function clean(text: string, max: number): string {
  return text.slice(0, max).replaceAll('\0', '').toWellFormed()
}
