/** The limits of a job's names and numbers; the server and `defineKind` check them. */

/** A name of a kind, queue, stage or domain. It is safe in URLs, file names, metrics and shells. */
export const NAME_PATTERN = /^[A-Za-z0-9][A-Za-z0-9._:-]{0,127}$/
/** The rule of `NAME_PATTERN` in words. */
export const NAME_RULE = 'must be 1 to 128 letters, digits, dots, colons, dashes or underscores'

/** The range of a number. */
export interface NumberLimits {
  readonly min: number
  readonly max: number
  readonly whole: boolean
  /** Whether `min` itself is excluded. */
  readonly above?: boolean
}

/** The longest time in a request, a leap year. */
export const SECONDS_MAX = 366 * 24 * 3600
const LEASE_SECONDS_MAX = 86_400

/** The ranges of a job's numbers. */
export const JOB_LIMITS = {
  priority: { min: -1000, max: 1000, whole: true },
  maxAttempts: { min: 1, max: 100, whole: true },
  timeoutSeconds: { min: 0, max: SECONDS_MAX, whole: false, above: true },
  leaseTtlSeconds: { min: 1, max: LEASE_SECONDS_MAX, whole: true },
  continuationSeconds: { min: 0, max: LEASE_SECONDS_MAX, whole: true },
} as const satisfies Record<string, NumberLimits>

/** The ranges of a backoff's numbers. */
export const BACKOFF_LIMITS = {
  baseSeconds: { min: 0, max: SECONDS_MAX, whole: false },
  capSeconds: { min: 0, max: SECONDS_MAX, whole: false },
  jitter: { min: 0, max: 1, whole: false },
} as const satisfies Record<string, NumberLimits>

/** The maximum of an estimate, a cost and a cost limit. It is stored in millionths, and 10^15 is still exact as a number. */
export const COST_MAX = 1_000_000_000

/** The maximum depth of arrays and objects. More would exhaust the stack. */
export const JSON_MAX_DEPTH = 64

/** How many characters of a failure are kept. A longer failure is cut, so that its length never prevents the report. */
export const ERROR_MESSAGE_MAX = 10_000
/** How many characters of a traceback are kept. */
export const ERROR_TRACEBACK_MAX = 50_000
