import type { BackoffShape } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import { number, seconds } from '../../values.ts'

/** How long a job waits before it is tried again. */
export interface BackoffFlags {
  backoffBase?: number
  backoffCap?: number
  backoffJitter?: number
}

export function withBackoff(command: Command): Command {
  return command
    .option(
      '--backoff-base <time>',
      'the wait before the first retry; it doubles for each later one (default: 10s)',
      seconds,
    )
    .option('--backoff-cap <time>', 'the longest wait before a retry (default: 300s)', seconds)
    .option('--backoff-jitter <part>', 'the random part of a wait, from 0 to 1 (default: 0.1)', number)
}

/** Undefined when no flag says anything. */
export function backoffOf({ backoffBase, backoffCap, backoffJitter }: BackoffFlags): BackoffShape | undefined {
  const given = Object.entries({ base_seconds: backoffBase, cap_seconds: backoffCap, jitter: backoffJitter })
  const said = given.filter(([, value]) => value !== undefined)
  return said.length === 0 ? undefined : Object.fromEntries(said)
}
