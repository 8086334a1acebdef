/** Clocks, timers, ids and randomness. They are injected, so that a simulation can replace them. */
export interface World {
  /** Wall clock, in ms since 1970. For people and records; never for measuring how long something took. */
  now(): number
  /** A monotonic clock, in ms. */
  monotonic(): number
  /** Calls back once; returns a function that cancels it. */
  after(ms: number, callback: () => void): () => void
  /** Calls back at the end of the current event loop turn, without a timer. */
  soon(callback: () => void): void
  /** A random number in [0, 1). */
  random(): number
  /** A new UUIDv7: sorts by the time it was made. */
  uuid(): string
  /** Random text that cannot be guessed, safe in URLs and headers. */
  secret(bytes: number): string
}

/** An instant on several clocks, each of which can stop or jump where another does not. */
export type Mark = Readonly<Record<string, number>>

/** Reads all the clocks, in ms. */
export type Clocks = () => Mark

/** Only the clock of the timers: for a process on the machine of the control plane. */
export function monotonicOnly(world: World): Clocks {
  return () => ({ monotonic: world.monotonic() })
}

/** The longest time that any clock measured, because only some clocks notice that the machine slept. */
export function elapsedMs(from: Mark, to: Mark): number {
  let most = Number.NEGATIVE_INFINITY
  for (const name of Object.keys(from)) {
    const ms = from[name] ?? 0
    most = Math.max(most, (to[name] ?? ms) - ms)
  }
  return most
}

/** Resolves after `ms`, or as soon as the signal aborts; never rejects. */
export function sleep(world: Pick<World, 'after'>, ms: number, signal?: AbortSignal): Promise<void> {
  return new Promise((resolve) => {
    if (signal?.aborted) return resolve()
    const done = () => {
      callOff()
      signal?.removeEventListener('abort', done)
      resolve()
    }
    const callOff = world.after(ms, done)
    signal?.addEventListener('abort', done, { once: true })
  })
}

/** Waits for a promise, or rejects with the signal's reason as soon as it aborts; the work then continues unobserved. */
export function unlessAborted<T>(begun: Promise<T>, signal: AbortSignal): Promise<T> {
  return new Promise((resolve, reject) => {
    const giveUp = () => reject(signal.reason)
    signal.addEventListener('abort', giveUp, { once: true })
    begun.then(resolve, reject).finally(() => signal.removeEventListener('abort', giveUp))
  })
}

/** The part of the world that is needed to wait with jitter. */
export type Timers = Pick<World, 'after' | 'random'>

/** Beyond this, 24.8 days, setTimeout fires at once. */
const TIMER_MAX_MS = 2 ** 31 - 1

/** The timers of browsers and Node. */
export const platformTimers: Timers = {
  after(ms, callback) {
    if (ms <= TIMER_MAX_MS) {
      const timer = setTimeout(callback, ms)
      return () => clearTimeout(timer)
    }
    let callOff = platformTimers.after(TIMER_MAX_MS, () => {
      callOff = platformTimers.after(ms - TIMER_MAX_MS, callback)
    })
    return () => callOff()
  },
  random: () => Math.random(),
}

/** The part of the world that a client needs: clocks, timers, randomness and ids. */
export type ClientWorld = Pick<World, 'now' | 'monotonic' | 'after' | 'random' | 'uuid'>

/** The world of browsers and Node. */
export const platformWorld: ClientWorld = {
  ...platformTimers,
  now: () => Date.now(),
  monotonic: () => performance.now(),
  /** Not `crypto.randomUUID`, which pages over plain HTTP lack. */
  uuid() {
    const bytes = crypto.getRandomValues(new Uint8Array(16))
    const ms = Date.now()
    for (let i = 0; i < 6; i++) bytes[i] = ms / 2 ** (40 - 8 * i)
    bytes[6] = 0x70 | ((bytes[6] ?? 0) & 0x0f)
    bytes[8] = 0x80 | ((bytes[8] ?? 0) & 0x3f)
    const hex = Array.from(bytes, (byte) => byte.toString(16).padStart(2, '0')).join('')
    return hex.replace(/^(.{8})(.{4})(.{4})(.{4})/, '$1-$2-$3-$4-')
  },
}
