import { readFileSync, readSync, statSync } from 'node:fs'
import { resolve } from 'node:path'
import { JOB_STATES } from '@ichido/sdk/protocol'
import { InvalidArgumentError } from 'commander'
import type { z } from 'zod'
import { isUuid } from '../contract/common.ts'
import { describeProblem } from '../core/json/problem.ts'
import { findJsonProblem } from '../core/json/request-json.ts'
import { parseKey } from '../core/keys/key.ts'
import { readTime, secondsIn, type TimeUnit } from '../core/limits/duration.ts'
import { realWorld } from '../node/world.ts'
import { EXIT, Failure } from './output/exit.ts'

/** Parsers for values on the command line; a bad value is a usage error that names its option. */

/** A hundred years; larger numbers of milliseconds lose digits. */
const SECONDS_LIMIT = 36_500 * 86_400
const INSTANT = /^\d{4}-\d{2}-\d{2}[T ]\d{2}:\d{2}(:\d{2}(\.\d+)?)?(Z|[+-]\d{2}:?\d{2})$/
const RETRY_AFTER_MS = 10

/** Parses `30s`, `10m`, `2h`, `7d` and `500ms`; a plain number is in `unit`, and so is what the parser returns. */
export function timeIn(unit: TimeUnit): (text: string) => number {
  return (text) => {
    const value = readTime(text, unit)
    if (value === null) throw new InvalidArgumentError('It must be a time like 30s, 10m, 2h or 7d.')
    if (value * secondsIn(unit) > SECONDS_LIMIT) throw new InvalidArgumentError('It must be at most 36500d.')
    return value
  }
}

export const seconds = timeIn('s')
export const hours = timeIn('h')
export const days = timeIn('d')

/** A time with its unit: a plain number of past seconds would look like a year. */
const AGO = /^\d.*[a-z]$/

/** An instant, or how long ago it was by the clock of this machine, such as `2h`. */
export function pastOf(text: string): string {
  if (AGO.test(text)) return new Date(realWorld.now() - seconds(text) * 1000).toISOString()
  try {
    return instantOf(text)
  } catch (error) {
    throw error instanceof InvalidArgumentError
      ? new InvalidArgumentError(`${error.message} Or how long ago: 2h.`)
      : error
  }
}

export function wholeNumber(text: string): number {
  if (!/^-?\d{1,15}$/.test(text)) throw new InvalidArgumentError('It must be a whole number.')
  return Number(text)
}

/** An option that can be given several times. */
export function several(value: string, before: string[] = []): string[] {
  return [...before, value]
}

/** An idempotency key. */
export function key(text: string): string {
  const parsed = parseKey(text)
  if (parsed.ok) return parsed.key
  throw new InvalidArgumentError(`It ${parsed.problem}.`)
}

/** An id; the argument can be repeated. */
export function ids(text: string, before: string[] = []): string[] {
  if (!isUuid(text)) throw new InvalidArgumentError('It must be an id like 01990f3a-7c1e-7b52-9d4e-3f6a8b2c1d07.')
  return [...before, text]
}

export function number(text: string): number {
  const value = Number(text)
  if (text.trim() === '' || !Number.isFinite(value)) throw new InvalidArgumentError('It must be a number.')
  return value
}

/** A number, or `none` for no limit. Not null, which Commander turns into an empty text. */
export function limit(text: string): number | 'none' {
  return text === 'none' ? text : number(text)
}

/** A time in seconds, or `none`. */
export function limitOfTime(text: string): number | 'none' {
  return text === 'none' ? text : seconds(text)
}

/** An instant as ISO 8601. The offset is required, because time zones differ between machines. */
export function instantOf(text: string): string {
  const ms = INSTANT.test(text) ? Date.parse(text) : Number.NaN
  if (Number.isNaN(ms)) {
    throw new InvalidArgumentError(
      'It must be an instant with its offset, like 2026-11-15T22:00:00Z or 2026-11-15T23:00:00+01:00.',
    )
  }
  return new Date(ms).toISOString()
}

/** The server's clock decides. */
export const NOW = 'now'

export function pastOrNow(text: string): string {
  return text === NOW ? NOW : pastOf(text)
}

/** States of jobs, separated by commas, in any case. */
export function states(text: string): string {
  const upper = text.toUpperCase()
  const known: readonly string[] = JOB_STATES
  if (upper.split(',').every((state) => known.includes(state))) return upper
  throw new InvalidArgumentError(`It must be one or more of ${JOB_STATES.join(', ')}, separated by commas.`)
}

/** `name=value`, or `name:value` as the API has it. */
export function labelFilter(text: string): string {
  const [found, name] = /^([^=:]+)[=:]/.exec(text) ?? []
  if (found === undefined) throw new InvalidArgumentError('It must be name=value.')
  return `${name}:${text.slice(found.length)}`
}

/** `name=value`; the option can be repeated. */
export function label(text: string, before: Record<string, string> = {}): Record<string, string> {
  const at = text.indexOf('=')
  if (at < 1) throw new InvalidArgumentError('It must be name=value.')
  return { ...before, [text.slice(0, at)]: text.slice(at + 1) }
}

/**
 * Reads all of standard input. npm, which starts the commands of a clone, leaves a pipe in non-blocking mode, so a read fails
 * with EAGAIN until the other program writes.
 */
export function readStandardInput(): string {
  const chunks: Buffer[] = []
  const chunk = Buffer.alloc(64 * 1024)
  for (;;) {
    try {
      const bytes = readSync(0, chunk)
      if (bytes === 0) return Buffer.concat(chunks).toString('utf8')
      chunks.push(Buffer.from(chunk.subarray(0, bytes)))
    } catch (error) {
      if (!(error instanceof Error && 'code' in error)) throw error
      if (error.code === 'EOF') return Buffer.concat(chunks).toString('utf8')
      if (error.code !== 'EAGAIN') throw error
      Atomics.wait(new Int32Array(new SharedArrayBuffer(4)), 0, 0, RETRY_AFTER_MS)
    }
  }
}

/** JSON itself, `@file` for a file that holds it, or `-` for standard input. */
export function payload(text: string): unknown {
  const json = text === '-' ? readStandardInput() : text.startsWith('@') ? readNamed(text.slice(1)) : text
  const problem = findJsonProblem(json, 'it')
  if (problem !== null) throw new InvalidArgumentError(`It cannot be stored: ${problem.message}.`)
  try {
    return JSON.parse(json) as unknown
  } catch (error) {
    throw new InvalidArgumentError(`It must be JSON, @file or -: ${error instanceof Error ? error.message : error}`)
  }
}

/** An existing file; the option can be repeated. */
export function fileName(path: string, before: string[] = []): string[] {
  try {
    if (statSync(path).isFile()) return [...before, path]
  } catch (error) {
    throw new InvalidArgumentError(`The file cannot be read: ${error instanceof Error ? error.message : error}`)
  }
  throw new InvalidArgumentError('It must be a file.')
}

function readNamed(file: string): string {
  try {
    return readFileSync(resolve(file), 'utf8')
  } catch (error) {
    throw new InvalidArgumentError(`The file cannot be read: ${error instanceof Error ? error.message : error}`)
  }
}

/** Checks values against the server's contract before anything is sent or kept; `flags` names the flag of each field. */
export function checked<T>(schema: z.ZodType<T>, given: unknown, flags: Readonly<Record<string, string>>): T {
  const parsed = schema.safeParse(given)
  if (parsed.success) return parsed.data
  const { field, message } = describeProblem(parsed.error)
  const flag = flags[field] ?? flags[field.split('.')[0] ?? '']
  throw new Failure(flag === undefined ? message : message.replace(field, flag), undefined, EXIT.usage)
}

/** Refuses a secret on the command line, which every user of the machine can read. */
export function secretFrom(text: string): string {
  if (text !== '-' && !text.startsWith('@')) {
    throw new InvalidArgumentError(
      'Other users of this machine could read it there; give @file, or - for standard input.',
    )
  }
  try {
    return (text === '-' ? readStandardInput() : readFileSync(text.slice(1), 'utf8')).trim()
  } catch (error) {
    throw new InvalidArgumentError(`The file cannot be read: ${error instanceof Error ? error.message : error}`)
  }
}
