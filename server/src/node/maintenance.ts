import { sleep } from '@ichido/sdk/world'
import type { MemoryPolicy } from '../bus/redis/memory-policy.ts'
import { DEFAULT_SHARDS } from '../core/events/shards.ts'
import { createAccessService, LOCAL_ADMIN, type NewToken } from '../services/access/access.ts'
import { peekPostgres, peekSqlite } from '../store/engines/peek.ts'
import { inspect } from '../store/engines/postgres/inspect.ts'
import { Servers } from '../store/engines/postgres/servers.ts'
import { SCHEMA_VERSION } from '../store/migrations/index.ts'
import { schemaVerdict } from '../store/migrations/migration.ts'
import type { Store } from '../store/port.ts'
import type { StorageConfig, StoreConfig } from './config.ts'
import { openStore } from './main.ts'
import { realWorld } from './world.ts'

/** What is done to a store without a running node. */

export { EVICTS_ADVICE } from '../bus/redis/memory-policy.ts'
export {
  type BackupReport,
  backupStore,
  moveBackup,
  refuseToReplace,
  restoreStore,
  verifyBackup,
} from '../store/backup/backup.ts'
export { type Store, type StoreHealth, StoreInUse } from '../store/port.ts'
export { BACKUPS_FOLDER } from './backups-folder.ts'
export { exposedFiles } from './exposed-files.ts'

/** Opening brings the schema up to date. */
export function openConfigured(config: StoreConfig): Promise<Store> {
  return openStore({ ...config, world: realWorld })
}

export interface SchemaState {
  /** Null when there is no store yet. */
  found: number | null
  known: number
  verdict: 'none' | ReturnType<typeof schemaVerdict>
}

/** Looks without changing anything, also at a store that another process has open. */
export async function schemaState(storage: StorageConfig): Promise<SchemaState> {
  const found =
    'dataDir' in storage ? peekSqlite(storage.dataDir) : await peekPostgres(storage.databaseUrl, storage.schema)
  return { found, known: SCHEMA_VERSION, verdict: found === null ? 'none' : schemaVerdict(found, SCHEMA_VERSION) }
}

export function createToken(store: Store, token: NewToken): Promise<{ token: string; token_id: string }> {
  return access(store).createToken(LOCAL_ADMIN, token)
}

export function isAuthRequired(store: Store): Promise<boolean> {
  return access(store).isAuthRequired()
}

/** Why wake-ups cannot come over this address; null when they can. */
export async function directTrouble(url: string): Promise<string | null> {
  try {
    const client = await new Servers(url).connect()
    const { pooled } = await inspect(client).finally(() => client.end())
    return pooled ? 'it leads to a connection pooler' : null
  } catch (error) {
    return error instanceof Error && error.message !== '' ? error.message : 'it does not answer'
  }
}

export interface RedisState {
  /** Null when Redis can be used. */
  trouble: string | null
  /** Of each server; null when Redis does not tell. */
  memory: readonly MemoryPolicy[] | null
}

/** Whether Redis can be connected to, and what it does when its memory is used up. */
export async function examineRedis(url: string): Promise<RedisState> {
  const { DEADLINE_MS, RedisLink } = await import('../bus/redis/link.ts')
  const troubles: unknown[] = []
  const onTrouble = (error: unknown) => troubles.push(error)
  const link = new RedisLink({ world: realWorld, url, shards: DEFAULT_SHARDS, onTrouble })
  const connected = new Promise<boolean>((resolve) => link.onConnect(() => resolve(true)))
  const done = new AbortController()
  const inTime = await Promise.race([connected, sleep(realWorld, DEADLINE_MS, done.signal)])
  done.abort()
  const memory = inTime === true ? await link.memory().catch(() => null) : null
  link.close()
  if (inTime === true) return { trouble: null, memory }
  const [trouble] = troubles
  return {
    trouble: trouble instanceof Error && trouble.message !== '' ? trouble.message : 'it does not answer',
    memory,
  }
}

function access(store: Store) {
  return createAccessService({ world: realWorld, store })
}
