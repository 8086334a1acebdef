import { whyNotOpened } from '../../core/node/store-errors.ts'
import type { StoreConfig } from '../../node/config.ts'
import type { Store } from '../../node/maintenance.ts'
import { Failure } from '../output/exit.ts'

const NAMES = { dataDir: 'DATA_DIR', databaseUrl: 'DATABASE_URL', schema: 'DATABASE_SCHEMA' }

/** Whatever keeps a store from being opened, in words that say what to do. */
export async function opening<T>({ storage }: StoreConfig, opened: Promise<T>): Promise<T> {
  try {
    return await opened
  } catch (error) {
    if (error instanceof Failure) throw error
    const told = whyNotOpened(error, 'dataDir' in storage ? storage.dataDir : null, NAMES)
    throw told === null ? error : new Failure(told.message, told.advice)
  }
}

export async function withStore<T>(config: StoreConfig, use: (store: Store) => Promise<T>): Promise<T> {
  const { openConfigured } = await import('../../node/maintenance.ts')
  const store = await opening(config, openConfigured(config))
  try {
    return await use(store)
  } finally {
    await store.close()
  }
}
