import type { StoreConfig } from '../config.ts'
import { whyNotOpened } from '../core/not-opened.ts'
import type { Store } from '../maintenance.ts'
import { Failure } from './exit.ts'

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
  const { openConfigured } = await import('../maintenance.ts')
  const store = await opening(config, openConfigured(config))
  try {
    return await use(store)
  } finally {
    await store.close()
  }
}
