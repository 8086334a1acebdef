import type { Store } from '../../store/port.ts'

export const VACUUM_INTERVAL_MS = 5_000

/** Keeps the rooms that every job passes through small. */
export function createVacuum({ store }: { store: Pick<Store, 'vacuum'> }): () => Promise<null> {
  return async () => {
    await store.vacuum()
    return null
  }
}
