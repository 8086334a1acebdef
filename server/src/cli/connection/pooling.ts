import type { StorageConfig } from '../../node/config.ts'

/** How this process is connected to PostgreSQL, and what would make it faster. */
export interface Pooling {
  message: string
  advice?: string
}

export function pooling(pooled: boolean, storage: Exclude<StorageConfig, { dataDir: string }>): Pooling {
  if (!pooled) return { message: 'direct connections, with prepared statements and wake-ups by LISTEN' }
  const message = 'behind a connection pooler, without prepared statements and session settings'
  if (storage.databaseDirectUrl !== undefined) return { message: `${message}; wake-ups over DATABASE_DIRECT_URL` }
  return {
    message: `${message}; wake-ups by polling, once a second`,
    advice: 'Set DATABASE_DIRECT_URL to the address of PostgreSQL itself: wake-ups then come at once.',
  }
}
