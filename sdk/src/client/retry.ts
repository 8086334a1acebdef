import { type ClientWorld, sleep } from '../world.ts'
import { MaxRetriesExceeded, NoAnswer, refusal, Transient } from './errors.ts'

/** How a failed call is retried. */
export interface RetryOptions {
  /** The maximum number of tries; default 3. With 1, a call is never retried. */
  tries?: number | undefined
  /** How long one try may take; default 120 s, 300 s for a part of an upload. */
  timeoutMs?: number | undefined
  /** How long all tries of a call may take together, with the waits between them; default 10 min. */
  totalMs?: number | undefined
  /** Called before each wait. If it throws, the call ends with that error. */
  onRetry?: ((retry: Retry) => void) | undefined
}

/** A retry that is about to be made. */
export interface Retry {
  /** The error of the last try. */
  error: unknown
  /** How many tries were made so far. */
  tries: number
  /** The wait before the next try. */
  delayMs: number
  /** The key of the call, given or generated. */
  key: string | undefined
}

const TRIES = 3
export const TIMEOUT_MS = 120_000
export const UPLOAD_TIMEOUT_MS = 300_000
const TOTAL_MS = 600_000

/** The delays of S3: 1 s, 2 s, 4 s … ± 10 %, with a cap. */
const FIRST_DELAY_MS = 1_000
const DELAY_MAX_MS = 60_000
const JITTER = 0.1

/** Never retried, even with `Should-Retry`: the same request would be refused again. */
const NEVER = [400, 401, 403, 404, 409]

/** Throws for invalid numbers. */
export function checkRetry({ tries = TRIES, ...times }: RetryOptions): void {
  if (!(Number.isInteger(tries) && tries >= 1)) throw new RangeError('retry.tries must be a whole number from 1')
  for (const name of ['timeoutMs', 'totalMs'] as const) {
    const ms = times[name]
    if (ms !== undefined && !(ms > 0)) throw new RangeError(`retry.${name} must be a number of ms above 0`)
  }
}

/**
 * Whether the same call may succeed later: after a connection error, 5xx, 408 and 429, and after a 409 that says that the first
 * request with the key is in progress. `Should-Retry` of the answer overrides this.
 */
export function mayRetry(error: unknown): error is Error {
  if (error instanceof NoAnswer) return true
  if (!(error instanceof Error && 'status' in error && typeof error.status === 'number')) return false
  const { status } = error
  const inProgress = 'code' in error && error.code === 'IDEMPOTENCY_IN_PROGRESS'
  if (NEVER.includes(status) && !inProgress) return false
  const advice = 'shouldRetry' in error && typeof error.shouldRetry === 'boolean' ? error.shouldRetry : undefined
  return advice ?? (inProgress || status >= 500 || status === 408 || status === 429)
}

/** The wait after this many tries. It doubles each time, and is never less than the answer asks for. */
export function retryDelayMs(tries: number, error: unknown, random: () => number): number {
  const backoffMs = Math.min(DELAY_MAX_MS, FIRST_DELAY_MS * 2 ** (tries - 1))
  const askedMs = askedMsOf(error)
  // Jitter also for Retry-After, so that the callers do not return at the same moment.
  const delayMs =
    askedMs > backoffMs ? askedMs * (1 + JITTER * random()) : backoffMs * (1 - JITTER + 2 * JITTER * random())
  return Math.round(delayMs)
}

/** The `Retry-After` of the answer; 0 if it has none. */
export function askedMsOf(error: unknown): number {
  return error instanceof Error && 'retryAfterMs' in error ? Number(error.retryAfterMs ?? 0) : 0
}

/** `Retry-After` in seconds, or as a date, which is compared with the answer's own `Date` if it has one. */
export function retryAfterMs(headers: Headers, nowMs: number): number | undefined {
  const text = headers.get('retry-after')?.trim()
  if (text === undefined || text === '') return undefined
  if (/^\d+$/.test(text)) return Number(text) * 1000
  // All three forms of an HTTP date begin with the day of the week; Date.parse makes a date of `-1`.
  const atMs = /^[a-z]{3}/i.test(text) ? Date.parse(text) : Number.NaN
  if (Number.isNaN(atMs)) return undefined
  const sentMs = Date.parse(headers.get('date') ?? '')
  return Math.max(0, atMs - (Number.isNaN(sentMs) ? nowMs : sentMs))
}

/** Turns an error into the class that callers see: `Transient` for a temporary failure, otherwise a class for the code. */
export function typed(error: unknown, key?: string, tries = 1): unknown {
  if (error instanceof Transient || !mayRetry(error)) return refusal(error)
  return tries === 1 ? new Transient(error, key) : new MaxRetriesExceeded(error, key, tries)
}

/** Repeats a call until it succeeds or must not be retried. */
export async function retrying<T>(
  world: ClientWorld,
  options: RetryOptions & { key?: string | undefined; signal?: AbortSignal | undefined },
  call: (tries: number, signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const { tries: triesMax = TRIES, timeoutMs = TIMEOUT_MS, totalMs = TOTAL_MS, onRetry, key, signal } = options
  const untilMs = world.monotonic() + totalMs
  for (let tries = 1; ; tries++) {
    signal?.throwIfAborted()
    try {
      const leftMs = untilMs - world.monotonic()
      return await within(world, Math.min(timeoutMs, leftMs), signal, (either) => call(tries, either))
    } catch (error) {
      signal?.throwIfAborted()
      const delayMs = retryDelayMs(tries, error, world.random)
      const again = mayRetry(error) && tries < triesMax && world.monotonic() + delayMs < untilMs
      if (!again) throw typed(error, key, tries)
      onRetry?.({ error, tries, delayMs, key })
      await sleep(world, delayMs, signal)
    }
  }
}

/** Makes one try; its signal aborts after `ms`. */
export async function within<T>(
  world: Pick<ClientWorld, 'after'>,
  ms: number,
  signal: AbortSignal | undefined,
  call: (signal: AbortSignal) => Promise<T>,
): Promise<T> {
  const late = new AbortController()
  const callOff = world.after(ms, () => late.abort(new NoAnswer(`No answer within ${Math.round(ms / 1000)} s`)))
  try {
    return await call(signal === undefined ? late.signal : AbortSignal.any([signal, late.signal]))
  } catch (error) {
    late.signal.throwIfAborted()
    throw error
  } finally {
    callOff()
  }
}
