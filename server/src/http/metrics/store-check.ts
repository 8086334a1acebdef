import type { World } from '@ichido/sdk/world'
import type { Deps } from '../../services/deps.ts'
import { sharedRead, within } from '../../services/wait.ts'

const COSTLY_MS = 50
const KEPT_FOR = 10
const KEPT_MS_MAX = 5_000

/** Health and metrics wait this long for the store. */
export const STORE_TIMEOUT_MS = 2_000
/** After an outage, a check waits only this long: a store that is back answers within a few milliseconds. */
const BACK_WITHIN_MS = 100

export type StoreCheck = () => Promise<'ok' | 'cannot be reached' | 'does not answer'>

/** Checks whether the store answers. Readiness, metrics and authentication during an outage share one check. */
export function createStoreCheck(world: World, store: Pick<Deps['store'], 'health'>): StoreCheck {
  let known: Awaited<ReturnType<StoreCheck>> = 'ok'
  const look = sharedRead(async () => {
    const answered = store.health().then(
      () => 'ok' as const,
      () => 'cannot be reached' as const,
    )
    known = await within(world, STORE_TIMEOUT_MS, answered, 'does not answer' as const)
    return known
  })
  return () => (known === 'ok' ? look() : within(world, BACK_WITHIN_MS, look(), known))
}

/**
 * Keeps the result of a slow read for a while, so that pages that poll do not keep a large store busy with counting.
 */
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
