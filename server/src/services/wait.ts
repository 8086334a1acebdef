import { sleep, type World } from '@ichido/sdk/world'
import type { Bus, Topic } from '../bus/port.ts'

/** Wake-ups may get lost, so a waiting call also looks this often. */
const POLL_MS = 1_000

/**
 * Calls `look` now and after every wake-up, until it finds something, the timeout has passed or the signal aborts. It
 * subscribes before the first look, so that it misses nothing in between.
 */
export async function waitFor<T>(
  { world, bus }: { world: World; bus: Bus },
  topics: readonly Topic[],
  timeoutMs: number,
  look: () => Promise<T | null>,
  signal?: AbortSignal,
  pollMs = POLL_MS,
): Promise<T | null> {
  const deadline = world.monotonic() + timeoutMs
  let woken = false
  let wake = () => {
    woken = true
  }
  const subscriptions = topics.map((topic) => bus.subscribe(topic, () => wake()))
  try {
    for (;;) {
      woken = false
      const found = await look()
      if (found !== null) return found
      const leftMs = deadline - world.monotonic()
      if (leftMs <= 0 || signal?.aborted) return null
      if (woken) continue
      await new Promise<void>((resolve) => {
        const done = () => {
          callOff()
          signal?.removeEventListener('abort', done)
          wake = () => {
            woken = true
          }
          resolve()
        }
        const callOff = world.after(Math.min(pollMs, leftMs), done)
        signal?.addEventListener('abort', done, { once: true })
        wake = done
      })
      // The caller has gone. A look could lease a run that nobody takes.
      if (signal?.aborted) return null
    }
  } finally {
    for (const end of subscriptions) end()
  }
}

/**
 * Shares reads: calls that come before a read begins share it. One read runs at a time. A call during a read waits for the
 * next one, because the running read may have looked before the call.
 */
export function freshRead<T>(read: () => Promise<T>): () => Promise<T> {
  let last: Promise<unknown> = Promise.resolve()
  let next: Promise<T> | null = null
  return () => {
    next ??= last.then(() => {
      next = null
      const reading = read()
      last = reading.catch(() => {})
      return reading
    })
    return next
  }
}

/** Shares reads: a call during a read gets the result of that read. */
export function sharedRead<T>(read: () => Promise<T>): () => Promise<T> {
  let reading: Promise<T> | null = null
  return () => {
    reading ??= read().finally(() => {
      reading = null
    })
    return reading
  }
}

/** The result of the work, or `late` if it takes longer than the timeout. */
export async function within<T, Late>(world: World, ms: number, work: Promise<T>, late: Late): Promise<T | Late> {
  const done = new AbortController()
  const tooLate = sleep(world, ms, done.signal).then(() => late)
  return Promise.race([work, tooLate]).finally(() => done.abort())
}
