import { serversOf } from '../../core/node/addresses.ts'
import { whyNotOpened } from '../../core/node/store-errors.ts'
import { isLoopback, type StorageConfig, type StoreConfig } from '../../node/config.ts'
import type { Store } from '../../node/maintenance.ts'
import { Failure } from '../output/exit.ts'
import { processEnv } from './connect.ts'

/** Modes that require TLS; `no-verify` is a mode of node-postgres. */
const TLS_MODES = ['require', 'verify-ca', 'verify-full', 'no-verify']
const NAMES = { dataDir: 'DATA_DIR', databaseUrl: 'DATABASE_URL', schema: 'DATABASE_SCHEMA' }

/** Explains why a store cannot be opened, and what to do. */
export async function opening<T>({ storage }: StoreConfig, opened: Promise<T>): Promise<T> {
  try {
    return await opened
  } catch (error) {
    if (error instanceof Failure) throw error
    const reason = whyNotOpened(error, 'dataDir' in storage ? storage.dataDir : null, NAMES)
    throw reason === null ? error : new Failure(reason.message, reason.advice)
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

/** How this process is connected to PostgreSQL, and advice for faster wake-ups. */
interface Pooling {
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

/** Reports an address of another machine that does not require TLS; null if there is none. */
export function tlsProblem(storage: StorageConfig): { message: string; advice: string } | null {
  if ('dataDir' in storage) return null
  const addresses = { DATABASE_URL: storage.databaseUrl, DATABASE_DIRECT_URL: storage.databaseDirectUrl }
  for (const [variable, address] of Object.entries(addresses)) {
    const { hosts, sslmode } = serversOf(address ?? '')
    if (TLS_MODES.includes(sslmode ?? processEnv.env.PGSSLMODE ?? '')) continue
    // A host that begins with a slash is the folder of a unix socket.
    const far = hosts.find((host) => host !== '' && !host.startsWith('/') && !isLoopback(host))
    if (far === undefined) continue
    return {
      message: `${variable} leads to ${far} and does not require TLS: others on the network can read database passwords, payloads and results`,
      advice: `Add sslmode=verify-full to ${variable}, unless you control the whole network in between.`,
    }
  }
  return null
}
