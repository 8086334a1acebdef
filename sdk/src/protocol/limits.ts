/** What names and numbers of a job may be, once: the server refuses the rest, and `defineKind` before it is sent. */

/** Kinds, queues, stages, domains: plain enough for URLs, file names, metrics and shells. */
export const NAME_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/
export const NAME_RULE = 'must be 1 to 128 letters, digits, dots, colons, dashes or underscores'

export interface NumberLimits {
  readonly min: number
  readonly max: number
  readonly whole: boolean
  /** `min` itself is too little. */
  readonly above?: boolean
}

export const SECONDS_MAX = 366 * 24 * 3600
const LEASE_SECONDS_MAX = 86_400

export const JOB_LIMITS = {
  priority: { min: -1000, max: 1000, whole: true },
  maxAttempts: { min: 1, max: 100, whole: true },
  timeoutSeconds: { min: 0, max: SECONDS_MAX, whole: false, above: true },
  leaseTtlSeconds: { min: 1, max: LEASE_SECONDS_MAX, whole: true },
  continuationSeconds: { min: 0, max: LEASE_SECONDS_MAX, whole: true },
} as const satisfies Record<string, NumberLimits>

export const BACKOFF_LIMITS = {
  baseSeconds: { min: 0, max: SECONDS_MAX, whole: false },
  capSeconds: { min: 0, max: SECONDS_MAX, whole: false },
  jitter: { min: 0, max: 1, whole: false },
} as const satisfies Record<string, NumberLimits>

/** Of an estimate, a cost and a cost limit. In millionths, as they are stored, it is still exact as a number: 10^15 of 2^53. */
export const COST_MAX = 1_000_000_000

/** Of arrays and objects inside each other: more would exhaust a stack. */
export const JSON_MAX_DEPTH = 64

/** What is kept of a failure. More is of no use to anybody, and must not be what keeps one from being recorded. */
export const ERROR_MESSAGE_MAX = 10_000
export const ERROR_TRACEBACK_MAX = 50_000
