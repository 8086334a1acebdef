import { InvalidValue } from '../client/kind.ts'
import { IchidoError } from '../protocol/index.ts'
import type { FailReport } from './transport.ts'

/** Thrown by a handler: trying again would not help. */
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

/** Why a handler's signal aborted; also what is reported when the handler gives up because of it. */
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
export const MESSAGE_MAX = 10_000
const TRACEBACK_MAX = 50_000

/** What a handler threw, as it is reported. */
export function toFailure(error: unknown, signal: AbortSignal): FailReport {
  if (isFatal(error)) return failure(error, error.code, false)
  if (signal.aborted && signal.reason instanceof Stopped) {
    const { code, message } = signal.reason
    return { code, message, retryable: true }
  }
  // A value that does not fit its schema will not fit it next time either.
  if (error instanceof InvalidValue) return failure(error, 'INVALID_VALUE', false)
  return failure(error, error instanceof IchidoError ? error.code : nameOf(error), true)
}

export function failure(error: unknown, code: string, retryable: boolean): FailReport {
  const message = error instanceof Error ? error.message : String(error)
  const report = { code: clean(code, CODE_MAX), message: clean(message || code, MESSAGE_MAX), retryable }
  const stack = error instanceof Error ? error.stack : undefined
  return stack === undefined ? report : { ...report, traceback: clean(stack, TRACEBACK_MAX) }
}

function nameOf(error: unknown): string {
  return (error instanceof Error && error.name) || 'ERROR'
}

/** NUL cannot be stored, nor can half a character, which is what cutting text often leaves behind. */
export function clean(text: string, max: number): string {
  return text.slice(0, max).replaceAll('\0', '').toWellFormed()
}
