import { type BackoffShape, DEFAULT_BACKOFF, DEFAULT_LIST_LIMIT } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { number, seconds, wholeNumber } from './values.ts'

export interface JsonFlag {
  json?: boolean
}

export interface ListFlags extends JsonFlag {
  limit?: number
  cursor?: string
}

/** Adds the flags of every list; its last flag is `--json`. */
export function paged(command: Command): Command {
  return command
    .option('--limit <n>', `at most this many (default: ${DEFAULT_LIST_LIMIT})`, wholeNumber)
    .option('--cursor <cursor>', 'continue where the last list ended')
    .option('--json', 'print JSON')
}

/** The wait before a retry. */
export interface BackoffFlags {
  backoffBase?: number
  backoffCap?: number
  backoffJitter?: number
}

export function withBackoff(command: Command): Command {
  const { baseSeconds, capSeconds, jitter } = DEFAULT_BACKOFF
  return command
    .option(
      '--backoff-base <time>',
      `the wait before the first retry; it doubles for each later one (default: ${baseSeconds}s)`,
      seconds,
    )
    .option('--backoff-cap <time>', `the longest wait before a retry (default: ${capSeconds}s)`, seconds)
    .option('--backoff-jitter <part>', `the random part of a wait, from 0 to 1 (default: ${jitter})`, number)
}

/** Undefined if no flag is given. */
export function backoffOf({ backoffBase, backoffCap, backoffJitter }: BackoffFlags): BackoffShape | undefined {
  const given = Object.entries({ base_seconds: backoffBase, cap_seconds: backoffCap, jitter: backoffJitter })
  const set = given.filter(([, value]) => value !== undefined)
  return set.length === 0 ? undefined : Object.fromEntries(set)
}
