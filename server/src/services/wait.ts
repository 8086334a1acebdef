import type { World } from '@ichido/sdk/world'
import type { Bus, Topic } from '../bus/port.ts'

/** Wake-ups may get lost; whoever waits looks by itself this often, unless something else tells it in the end. */
const POLL_MS = 1_000

/**
 * Calls `look` now and after every wake-up, until it finds something, the time is up or the signal aborts.
 * The subscription stands before the first look, so nothing can happen unseen in between.
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
      // Nobody is there any more to take what a look may find; a lease would be held for nothing.
      if (signal?.aborted) return null
    }
  } finally {
    for (const end of subscriptions) end()
  }
}
