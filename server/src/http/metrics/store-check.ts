import type { World } from '@ichido/sdk/world'
import type { Deps } from '../../services/deps.ts'
import { sharedRead, within } from '../../services/wait.ts'

/** For what is told of the store, and does not wait for it. */
export const STORE_TIMEOUT_MS = 2_000
/** A store that was away when it was last asked has this long to show that it is back: a look takes a few milliseconds. */
const BACK_WITHIN_MS = 100

export type StoreCheck = () => Promise<'ok' | 'cannot be reached' | 'does not answer'>

/** Whether the store answers: one look for readiness, for the metrics, and for who may see them without it. */
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
