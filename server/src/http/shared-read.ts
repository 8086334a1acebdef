import type { World } from '@ichido/sdk/world'

/** A reading that took this long is kept for a while, so that all readings together take a twentieth of the time. */
const COSTLY_MS = 25
const KEPT_FOR = 20

/** One reading at a time, for all who ask meanwhile: a page that polls must not load the store with each viewer. */
export function sharedRead<T>(world: Pick<World, 'monotonic'>, read: () => Promise<T>): () => Promise<T> {
  let reading: Promise<T> | null = null
  let keptUntilMs = Number.NEGATIVE_INFINITY
  let done = true

  return () => {
    if (reading !== null && (!done || world.monotonic() < keptUntilMs)) return reading
    const beganMs = world.monotonic()
    done = false
    reading = read().finally(() => {
      const tookMs = world.monotonic() - beganMs
      keptUntilMs = tookMs < COSTLY_MS ? beganMs : beganMs + tookMs * KEPT_FOR
      done = true
    })
    return reading
  }
}
