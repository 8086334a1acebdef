import type { StoreConfig } from '../config.ts'
import type { Store } from '../maintenance.ts'
import { codeOf, innermost } from './cause.ts'
import { Failure } from './exit.ts'

/** Errors that say what to do themselves. */
const SAYS_ITSELF = ['ArtifactsElsewhere', 'ShardsRefused', 'StoreFull', 'StoreInUse', 'StoreRefused']

/** Whatever keeps a store from being opened, in words that say what to do. */
export async function opening<T>({ storage }: StoreConfig, opened: Promise<T>): Promise<T> {
  try {
    return await opened
  } catch (error) {
    const why = innermost(error)
    if (error instanceof Failure || (error instanceof Error && SAYS_ITSELF.includes(error.name))) throw error
    if ('dataDir' in storage) {
      throw new Failure(
        `The store in ${storage.dataDir} cannot be opened: ${why}`,
        'Set DATA_DIR to a folder that this user may write to, or restore a backup into a new one.',
      )
    }
    throw new Failure(`PostgreSQL cannot be used: ${why}`, adviceFor(codeOf(error), why))
  }
}

function adviceFor(code: string, why: string): string {
  if (/statement pooling mode/.test(why))
    return 'Set pool_mode = transaction or session for this database in PgBouncer.'
  if (/unsupported startup parameter/.test(why))
    return 'Take `options` out of DATABASE_URL, or list it in ignore_startup_parameters of PgBouncer.'
  if (code === '25006')
    return 'Name the primary, or all servers: DATABASE_URL=postgres://host1,host2/database?target_session_attrs=read-write'
  if (/^28/.test(code)) return 'Check the user and the password in DATABASE_URL.'
  if (code === '3D000') return 'Make that database first (createdb), or name another one in DATABASE_URL.'
  if (code === '42501')
    return 'Give the user of DATABASE_URL the right to create a schema, or set DATABASE_SCHEMA to its own.'
  if (code === 'ECONNREFUSED') return 'Start PostgreSQL, or set DATABASE_URL to where it listens.'
  if (/^(ENOTFOUND|EAI_)/.test(code)) return 'Check the name of the machine in DATABASE_URL.'
  return 'Check that PostgreSQL runs, that no firewall is in between, and that `psql "$DATABASE_URL"` gets through.'
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
