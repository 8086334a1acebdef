import { statSync } from 'node:fs'
import { join } from 'node:path'
import { sleep } from '@ichido/sdk/world'
import type { MemoryPolicy } from '../bus/redis/memory-policy.ts'
import { DEFAULT_SHARDS } from '../core/events/event.ts'
import { ALL_BUT_OWNER, modesInside, modeText, OTHERS, PRIVATE } from '../core/node/file-modes.ts'
import { createAccessService, LOCAL_ADMIN, type NewToken } from '../services/access/access.ts'
import { peekPostgres } from '../store/engines/postgres/migrate.ts'
import { inspect, Servers } from '../store/engines/postgres/servers.ts'
import { BESIDE, DATABASE_FILE, peekSqlite } from '../store/engines/sqlite/sqlite.ts'
import { SCHEMA_VERSION } from '../store/migrations/index.ts'
import { schemaVerdict } from '../store/migrations/migration.ts'
import type { Store } from '../store/port.ts'
import type { ServerConfig, StorageConfig, StoreConfig } from './config.ts'
import { openStore } from './start-node.ts'
import { realWorld } from './world.ts'

/** Operations on a store without a running node. */

export { EVICTS_ADVICE } from '../bus/redis/memory-policy.ts'
export {
  type BackupReport,
  backupStore,
  moveBackup,
  refuseToReplace,
  restoreStore,
  verifyBackup,
} from '../store/backup/backup.ts'
export { type Store, type StoreHealth, StoreInUse, StoreRefused } from '../store/port.ts'
export { BACKUPS_FOLDER } from './folders.ts'

/** Opening migrates the schema. */
export function openConfigured(config: StoreConfig): Promise<Store> {
  return openStore({ ...config, world: realWorld })
}

export interface SchemaState {
  /** Null when there is no store yet. */
  found: number | null
  known: number
  verdict: 'none' | ReturnType<typeof schemaVerdict>
}

/** Reads the schema's version without changing anything, even if another process has the store open. */
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

/** Says why wake-ups cannot use this address; null if they can. */
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
  /** One for each server; null if Redis does not tell. */
  memory: readonly MemoryPolicy[] | null
}

/** Checks whether Redis can be reached, and what it does when its memory is full. */
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

/** A path that other users of this machine can read or list, and the command that mends it. */
interface Exposed {
  path: string
  mode: string
  mend: string
}

/**
 * Finds exposed paths, for example of an earlier version. The server restricts its database when it starts, but never
 * changes a folder that existed before, because it may be used by others.
 */
export function exposedFiles({ storage, artifacts }: Pick<ServerConfig, 'storage' | 'artifacts'>): Exposed[] {
  const found: Exposed[] = []
  const look = (path: string, bits: number, mend: string) => {
    const mode = modeOf(path)
    if ((mode & bits) !== 0) found.push({ path, mode: modeText(mode), mend: `${mend} ${path}` })
  }
  const lookAtArtifacts = (folder: string) =>
    modesInside(modeOf(folder)) === PRIVATE
      ? look(folder, ALL_BUT_OWNER, 'chmod -R go-rwx')
      : look(folder, OTHERS, 'chmod -R o-rwx')

  if (artifacts.folder !== undefined) lookAtArtifacts(artifacts.folder)
  if ('dataDir' in storage) {
    const { dataDir } = storage
    look(dataDir, ALL_BUT_OWNER, `chmod ${modeText(PRIVATE.folder)}`)
    // Files in a private folder are not reachable.
    if (found.some(({ path }) => path === dataDir)) {
      for (const suffix of BESIDE) {
        look(join(dataDir, DATABASE_FILE + suffix), ALL_BUT_OWNER, `chmod ${modeText(PRIVATE.file)}`)
      }
      lookAtArtifacts(join(dataDir, 'artifacts'))
    }
  }
  return found
}

/** A missing path has mode 0. */
function modeOf(path: string): number {
  return statSync(path, { throwIfNoEntry: false })?.mode ?? 0
}
