import { sleep, type World } from '@ichido/sdk/world'

/** One reading at a time, for all who ask meanwhile. */
export function sharedRead<T>(read: () => Promise<T>): () => Promise<T> {
  let reading: Promise<T> | null = null
  return () => {
    reading ??= read().finally(() => {
      reading = null
    })
    return reading
  }
}

/** What is read, or something else if that takes too long. */
export async function within<T, Late>(world: World, ms: number, read: Promise<T>, late: Late): Promise<T | Late> {
  const done = new AbortController()
  const tooLate = sleep(world, ms, done.signal).then(() => late)
  return Promise.race([read, tooLate]).finally(() => done.abort())
}

const COSTLY_MS = 50
const KEPT_FOR = 10
const KEPT_MS_MAX = 5_000

/** A reading that took long is kept for a while: pages that poll must not keep a large store busy with counting. */
export function rationedRead<T>(world: Pick<World, 'monotonic'>, read: () => Promise<T>): () => Promise<T> {
  let kept: { value: T; untilMs: number } | null = null
  const readNow = sharedRead(async () => {
    const beganMs = world.monotonic()
    const value = await read()
    const tookMs = world.monotonic() - beganMs
    const keepMs = tookMs < COSTLY_MS ? 0 : Math.min(tookMs * KEPT_FOR, KEPT_MS_MAX)
    kept = { value, untilMs: world.monotonic() + keepMs }
    return value
  })
  return async () => (kept !== null && world.monotonic() < kept.untilMs ? kept.value : readNow())
}
