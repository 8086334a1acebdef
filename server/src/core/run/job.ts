import { DEFAULT_BACKOFF, DEFAULT_LEASE_TTL_SECONDS, DEFAULT_MAX_ATTEMPTS } from '@ichido/sdk/protocol'
import { type EventPolicy, isStages, SEQ_SCOPES } from '../events/event.ts'
import { type Check, isNumber, isObjectOf, isOneOf, isText } from '../json/stored-json.ts'

/** How a job is run. A policy never changes. A field that is not set has the default of the time when it is used. */
export interface JobPolicy extends EventPolicy {
  max_attempts?: number
  backoff?: Backoff
  timeout_seconds?: number
  lease_ttl_seconds?: number
  continuation_seconds?: number
}

/** A field with null is not set. */
const unset =
  <T>(check: Check<T>): Check<T | undefined> =>
  (value): value is T | undefined =>
    value === null || value === undefined || check(value)

const isBackoff = isObjectOf<Backoff>({ baseSeconds: isNumber, capSeconds: isNumber, jitter: isNumber })

const isPolicy = isObjectOf<JobPolicy>({
  max_attempts: unset(isNumber),
  backoff: unset(isBackoff),
  timeout_seconds: unset(isNumber),
  lease_ttl_seconds: unset(isNumber),
  continuation_seconds: unset(isNumber),
  domain: unset(isText),
  stages: unset(isStages),
  seq_scope: unset(isOneOf(SEQ_SCOPES)),
})

/** Checks a policy that was stored as JSON. */
export function parsePolicy(value: unknown): JobPolicy {
  if (!isPolicy(value)) throw new TypeError('A stored policy is malformed')
  return value
}

export { DEFAULT_BACKOFF, DEFAULT_CONTINUATION_SECONDS } from '@ichido/sdk/protocol'
/** The largest payload of a job. */
export const PAYLOAD_BYTES_MAX = 1024 * 1024
export const DEFAULT_LEASE_TTL_MS = DEFAULT_LEASE_TTL_SECONDS * 1000
/** A worker that was not seen for this long no longer starts its assigned runs. */
export const WORKER_UNSEEN_MS = 120_000
/** A run that was leased this often without a start is given up. */
export const HANDOUTS_MAX = 50
/** A worker stops a run at its timeout, and has this long to report it before the leader ends the run. */
export const TIMEOUT_GRACE_MS = 5_000

/** Before and after every id of a job, run or definition: where a walk or a list begins. */
export const FIRST_ID = '00000000-0000-0000-0000-000000000000'
export const LAST_ID = 'ffffffff-ffff-ffff-ffff-ffffffffffff'

/** True if the job may be tried again after `retryCount` runs of it started and failed. */
export function hasRetriesLeft(policy: JobPolicy, retryCount: number): boolean {
  return retryCount < (policy.max_attempts ?? DEFAULT_MAX_ATTEMPTS)
}

/** A run_at may be this far in the past: clocks differ, and requests take time. */
export const RUN_AT_GRACE_MS = 60_000
export const RUN_AT_MAX_AHEAD_MS = 366 * 24 * 3600 * 1000

export function runAtProblem(runAtMs: number, nowMs: number): string | null {
  if (Number.isNaN(runAtMs)) return 'run_at is not an instant'
  if (runAtMs < nowMs - RUN_AT_GRACE_MS) return 'run_at is in the past'
  return runAtMs > nowMs + RUN_AT_MAX_AHEAD_MS ? 'run_at is more than 366 days ahead' : null
}

/** Workers inside a node's own process. On SQLite their leases end with the process. */
export const LOCAL_WORKER_PREFIX = 'local-'

/** A failed job is tried again after `min(cap, base · 2^retry)` seconds, minus jitter. */
interface Backoff {
  baseSeconds: number
  capSeconds: number
  /** The part of the delay that is random, 0 to 1. */
  jitter: number
}

/** The form on the wire. */
interface BackoffShape {
  base_seconds: number
  cap_seconds: number
  jitter: number
}

/**
 * @param retryCount how many runs of the job have failed before this retry; 0 for the first
 * @param random a number in [0, 1), drawn by the caller
 */
export function retryDelayMs(backoff: Backoff, retryCount: number, random: number): number {
  const exponential = backoff.baseSeconds * 2 ** Math.min(retryCount, 52)
  const full = Math.min(backoff.capSeconds, exponential) * 1000
  // Jitter is subtracted, so that no delay exceeds the cap.
  return Math.round(full * (1 - backoff.jitter * random))
}

export function toBackoffShape({ baseSeconds, capSeconds, jitter }: Backoff): BackoffShape {
  return { base_seconds: baseSeconds, cap_seconds: capSeconds, jitter }
}

/** Missing fields have their defaults. */
export function fromBackoffShape(shape: Partial<Record<keyof BackoffShape, number | undefined>>): Backoff {
  return {
    baseSeconds: shape.base_seconds ?? DEFAULT_BACKOFF.baseSeconds,
    capSeconds: shape.cap_seconds ?? DEFAULT_BACKOFF.capSeconds,
    jitter: shape.jitter ?? DEFAULT_BACKOFF.jitter,
  }
}
