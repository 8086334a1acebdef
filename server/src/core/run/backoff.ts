/** When a failed job is tried again: `min(cap, base · 2^retry)` seconds, with jitter that stays inside the cap. */
export interface Backoff {
  baseSeconds: number
  capSeconds: number
  /** Part of the delay that is drawn at random, 0 to 1. */
  jitter: number
}

export function isBackoff(value: unknown): value is Backoff {
  if (typeof value !== 'object' || value === null) return false
  const { baseSeconds, capSeconds, jitter }: Partial<Record<keyof Backoff, unknown>> = value
  return typeof baseSeconds === 'number' && typeof capSeconds === 'number' && typeof jitter === 'number'
}

/** As it is on the wire. */
export interface BackoffShape {
  base_seconds: number
  cap_seconds: number
  jitter: number
}

/** S1 §6: first retry after 10 s, never more than 300 s. */
export const DEFAULT_BACKOFF: Backoff = { baseSeconds: 10, capSeconds: 300, jitter: 0.1 }

/**
 * @param retryCount how many runs of the job have failed before this retry; 0 for the first
 * @param random a number in [0, 1), drawn by the caller
 */
export function retryDelayMs(backoff: Backoff, retryCount: number, random: number): number {
  const exponential = backoff.baseSeconds * 2 ** Math.min(retryCount, 52)
  const full = Math.min(backoff.capSeconds, exponential) * 1000
  // Jitter is taken off, not added: the cap is a promise to whoever waits.
  return Math.round(full * (1 - backoff.jitter * random))
}

export function toBackoffShape({ baseSeconds, capSeconds, jitter }: Backoff): BackoffShape {
  return { base_seconds: baseSeconds, cap_seconds: capSeconds, jitter }
}

/** What is left out is as it is by default. */
export function fromBackoffShape(shape: Partial<Record<keyof BackoffShape, number | undefined>>): Backoff {
  return {
    baseSeconds: shape.base_seconds ?? DEFAULT_BACKOFF.baseSeconds,
    capSeconds: shape.cap_seconds ?? DEFAULT_BACKOFF.capSeconds,
    jitter: shape.jitter ?? DEFAULT_BACKOFF.jitter,
  }
}
