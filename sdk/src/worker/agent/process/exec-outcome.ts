import { closeSync } from 'node:fs'
import { COST_RULE, isCost } from '../../loop/cost.ts'
import { CODE_MAX, clean, MESSAGE_MAX, Stopped } from '../../loop/failure.ts'
import type { Outcome } from '../../loop/loop.ts'
import type { FailReport } from '../../loop/transport.ts'
import { parseJson } from '../output/files.ts'
import { FileRefused, openRegular, readEnd, readRegular, unlessRefused } from '../output/written-files.ts'
import type { RunFolder } from './run-folder.ts'
import type { ProgramEnd } from './supervision.ts'

/** The last lines of stderr, for whoever asks why it failed. */
const LAST_ERRORS_BYTES = 4_000
/** The control plane takes no more in one call. */
const RESULT_BYTES_MAX = 16 * 1024 * 1024
/** A number, and some space around it. */
const COST_BYTES_MAX = 1_000

/** What a program's end comes to: by who ended it, its exit code, and what it wrote into its files. */
export function outcomeOf(end: ProgramEnd, signal: AbortSignal, folder: RunFolder): Outcome {
  if (end.by === 'deadline') {
    const message = 'No heartbeat was confirmed in time; the program was stopped'
    return { failure: { code: 'CONTINUATION_LOST', message, retryable: true } }
  }
  if (end.by !== 'itself') {
    return (
      stoppedOutcome(signal) ?? { failure: { code: 'STOPPED', message: 'The program was stopped', retryable: true } }
    )
  }
  if (end.code !== 0) {
    // It has failed by its own word: files that are refused add nothing to that.
    const written = unlessRefused(() => readResult(folder))
    return {
      failure: failureOf(end, written, unlessRefused(() => readEnd(folder.stderrFile, LAST_ERRORS_BYTES)) ?? ''),
    }
  }
  try {
    requireRegular(folder)
    return successOf(folder)
  } catch (error) {
    if (!(error instanceof FileRefused)) throw error
    return { failure: { code: FILE_REFUSED, message: error.message, retryable: false } }
  }
}

/** A run fails with it when a file that it left is not one that may be read. */
export const FILE_REFUSED = 'FILE_REFUSED'

/** While it ran, what took the place of these was not read. */
function requireRegular({ stdoutFile, stderrFile, progressFile }: RunFolder): void {
  for (const file of [stdoutFile, stderrFile, progressFile]) {
    const fd = openRegular(file)
    if (fd !== null) closeSync(fd)
  }
}

function successOf(folder: RunFolder): Outcome {
  const written = readResult(folder)
  if (written === undefined) return invalid('The result file holds no JSON')
  const said = readWritten(folder.costFile, COST_BYTES_MAX)
  if (said === null) return { result: { result: written } }
  // Not as JSON, for which the .25 that `bc` prints is no number.
  const cost = Number(said)
  return isCost(cost) ? { result: { result: written, cost } } : invalid(`The cost file does not hold ${COST_RULE}`)
}

/** Undefined when it is no JSON. */
function readResult({ resultFile }: RunFolder): unknown {
  const text = readWritten(resultFile, RESULT_BYTES_MAX)
  return text === null ? null : parseJson(text)
}

/** Null when there is nothing in it. */
function readWritten(path: string, bytesMax: number): string | null {
  const text = readRegular(path, bytesMax)
  return text === null || text.trim() === '' ? null : text
}

function invalid(message: string): Outcome {
  return { failure: { code: 'INVALID_RESULT', message, retryable: true } }
}

/** Null: nobody told it to stop. */
export function stoppedOutcome({ reason }: AbortSignal): Outcome | null {
  if (!(reason instanceof Stopped)) return null
  const { code, message } = reason
  return code === 'STOPPED' ? 'released' : { failure: { code, message, retryable: true } }
}

/** The program's own words, where it has any: `{"error": {"code", "message", "retryable"}}`. */
function failureOf({ code, signal }: ProgramEnd, written: unknown, errors: string): FailReport {
  const said = errorIn(written)
  const how = signal === null ? `exited with code ${code}` : `was ended by ${signal}`
  const lastLine = errors.trim().split('\n').at(-1) ?? ''
  return {
    code: clean(textOr(said.code, signal ?? `EXIT_${code}`), CODE_MAX),
    message: clean(textOr(said.message, `The program ${how}${lastLine === '' ? '' : `: ${lastLine}`}`), MESSAGE_MAX),
    retryable: typeof said.retryable === 'boolean' ? said.retryable : true,
    ...(errors.trim() === '' ? {} : { traceback: clean(errors, MESSAGE_MAX) }),
  }
}

function errorIn(written: unknown): { code?: unknown; message?: unknown; retryable?: unknown } {
  if (typeof written !== 'object' || written === null || !('error' in written)) return {}
  return typeof written.error === 'object' && written.error !== null ? written.error : {}
}

function textOr(said: unknown, otherwise: string): string {
  return typeof said === 'string' && said !== '' ? said : otherwise
}
