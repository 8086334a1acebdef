import type { EventPolicy } from '../events/seq.ts'
import { type Backoff, isBackoff } from './backoff.ts'

/** How a job is to be run; immutable, like the job. What is not set takes the default at the time it is needed. */
export interface JobPolicy extends EventPolicy {
  max_attempts?: number
  backoff?: Backoff
  timeout_seconds?: number
  lease_ttl_seconds?: number
  continuation_seconds?: number
}

const isNumber = (value: unknown) => typeof value === 'number'

const CHECKS: Readonly<Record<keyof JobPolicy, (value: unknown) => boolean>> = {
  max_attempts: isNumber,
  backoff: isBackoff,
  timeout_seconds: isNumber,
  lease_ttl_seconds: isNumber,
  continuation_seconds: isNumber,
  domain: (value) => typeof value === 'string',
  stages: (value) => value === 'eco2' || Array.isArray(value),
  seq_scope: (value) => value === 'job' || value === 'attempt',
}
const POLICY_CHECKS = new Map(Object.entries(CHECKS))

/** Checks a policy that was stored as JSON. */
export function parsePolicy(value: unknown): JobPolicy {
  if (!isPolicy(value)) throw new TypeError('A stored policy is malformed')
  return value
}

function isPolicy(value: unknown): value is JobPolicy {
  if (typeof value !== 'object' || value === null) return false
  // A version to come may have more fields.
  return Object.entries(value).every(([name, field]) => field === null || (POLICY_CHECKS.get(name)?.(field) ?? true))
}

export const DEFAULT_MAX_ATTEMPTS = 4
/** Of one job. */
export const PAYLOAD_BYTES_MAX = 1024 * 1024
export const DEFAULT_LEASE_TTL_MS = 60_000
export const DEFAULT_CONTINUATION_SECONDS = 60
/** A worker that was not seen for this long does not start what it was assigned. */
export const WORKER_UNSEEN_MS = 120_000
/** So often a run is handed out without being started; then nobody is left to try it. */
export const HANDOUTS_MAX = 50
/** A worker ends a run at its timeout by itself, and is given this long to say so before the leader does. */
export const TIMEOUT_GRACE_MS = 5_000
export const DEFAULT_KEY_TTL_HOURS = 24
export const DEFAULT_QUEUE = 'default'

/** May the job be tried again after `retryCount` runs of it have started and failed? */
export function hasRetriesLeft(policy: JobPolicy, retryCount: number): boolean {
  return retryCount < (policy.max_attempts ?? DEFAULT_MAX_ATTEMPTS)
}

/** A run_at may lie this far back without being a mistake: clocks differ, and requests take time. */
export const RUN_AT_GRACE_MS = 60_000
export const RUN_AT_MAX_AHEAD_MS = 366 * 24 * 3600 * 1000

export function runAtProblem(runAtMs: number, nowMs: number): string | null {
  if (Number.isNaN(runAtMs)) return 'run_at is not an instant'
  if (runAtMs < nowMs - RUN_AT_GRACE_MS) return 'run_at is in the past'
  return runAtMs > nowMs + RUN_AT_MAX_AHEAD_MS ? 'run_at is more than 366 days ahead' : null
}

/** Workers inside a node's own process; their leases end with it where the store belongs to one process. */
export const LOCAL_WORKER_PREFIX = 'local-'
