import { join, resolve } from 'node:path'
import { type BackupShape, IchidoError } from '@ichido/sdk/protocol'
import type { Command } from 'commander'
import type { StoreConfig } from '../../../node/config.ts'
import type { BackupReport } from '../../../node/maintenance.ts'
import { connect, processEnv, Unreachable } from '../../connection/connect.ts'
import { opening, withStore } from '../../connection/store.ts'
import type { JsonFlag } from '../../flags.ts'
import { Failure } from '../../output/exit.ts'
import { LiveLine, outJson, say } from '../../output/terminal.ts'

interface BackupFlags extends JsonFlag {
  restore?: boolean
  verify?: boolean
  force?: boolean
}

export function addBackup(program: Command): void {
  program
    .command('backup <file>')
    .description('copy the whole store into one file, or restore such a file into an empty store')
    .option('--restore', 'restore the file; it may come from the other engine')
    .option('--verify', 'only check that the file is complete')
    .option('--force', 'replace an existing file')
    .option('--json', 'print JSON')
    .addHelpText('after', ABOUT)
    .action(backup)
}

const ABOUT = `
You can back up a store while servers use it. For an embedded store, the running server makes the backup: set ICHIDO_URL and ICHIDO_TOKEN.
You can restore a backup into the other engine, for example to move from SQLite to PostgreSQL.`

async function backup(name: string, flags: BackupFlags): Promise<void> {
  const file = resolve(name)
  if (flags.verify) return verify(file, flags)
  return flags.restore ? restore(file, flags) : create(file, flags)
}

async function verify(file: string, { json }: BackupFlags): Promise<void> {
  const { verifyBackup } = await import('../../../node/maintenance.ts')
  const found = verifyBackup(file)
  if (json) return outJson({ file, ...found })
  say(`${file} is whole: ${sizeOf(found)}, of ${found.engine}, made ${found.created_at}.`)
}

async function restore(file: string, { json }: BackupFlags): Promise<void> {
  const { readStoreConfig } = await import('../../../node/config.ts')
  const { restoreStore, verifyBackup } = await import('../../../node/maintenance.ts')
  const config = readStoreConfig(processEnv)
  // Checked first, because opening a store creates it.
  verifyBackup(file)
  const done = await withProgress('Restoring', (onProgress) =>
    withStore(config, (store) => restoreStore(store, file, { onProgress })),
  )
  if (json) return outJson({ file, ...done })
  say(`Restored ${file} (${sizeOf(done)}, read back and compared). The leader's epoch is ${done.epoch} now.`)
}

async function create(file: string, { force = false, json }: BackupFlags): Promise<void> {
  const { readStoreConfig } = await import('../../../node/config.ts')
  const { backupStore, schemaState, StoreInUse } = await import('../../../node/maintenance.ts')
  const { realWorld: world } = await import('../../../node/world.ts')
  const config = readStoreConfig(processEnv)
  if ((await opening(config, schemaState(config.storage))).verdict === 'none') {
    const where = 'dataDir' in config.storage ? config.storage.dataDir : `the schema ${config.storage.schema}`
    throw new Failure(`There is no store in ${where}.`, 'Set DATA_DIR or DATABASE_URL to the one to back up.')
  }
  const done = await withProgress('Copying', (onProgress) =>
    withStore(config, (store) => backupStore(store, file, { world, onProgress, force })),
  ).catch((error: unknown) => {
    if (!(error instanceof StoreInUse)) throw error
    return createOnServer(config, file, force)
  })
  if (json) return outJson({ file, ...done })
  say(`Backed up to ${file} (${sizeOf(done)}, read back and compared).`)
}

/** A running server locks the embedded store, so the server makes the backup. */
async function createOnServer({ storage }: StoreConfig, file: string, force: boolean): Promise<BackupReport> {
  if (!('dataDir' in storage)) throw new TypeError('PostgreSQL is open to everybody')
  const { BACKUPS_FOLDER, moveBackup, refuseToReplace } = await import('../../../node/maintenance.ts')
  const { realWorld: world } = await import('../../../node/world.ts')
  refuseToReplace(file, force)
  const { ask, url } = connect()
  const { name } = await ask<BackupShape>('POST', '/v1/backups').catch((error: unknown) => {
    const refused = error instanceof IchidoError && ['UNAUTHENTICATED', 'FORBIDDEN'].includes(error.code)
    if (!refused && !(error instanceof Unreachable)) throw error
    const why = refused ? 'requires the token of an admin' : 'does not answer'
    throw new Failure(
      `A running server uses the store in ${storage.dataDir}, and ${url} ${why}.`,
      "Set ICHIDO_URL to the URL of that server and ICHIDO_TOKEN to an admin's token, or stop the server for the backup.",
    )
  })
  const made = join(storage.dataDir, BACKUPS_FOLDER, name)
  try {
    return moveBackup(made, file, { world, force })
  } catch (error) {
    if (!(error instanceof Error) || !('path' in error) || error.path !== made) throw error
    throw new Failure(
      `The server at ${url} made the backup ${name}, but ${made} cannot be read: ${error.message}`,
      'Set ICHIDO_URL to the server that uses this folder.',
    )
  }
}

async function withProgress<T>(
  verb: string,
  work: (onProgress: (table: string, rows: number) => void) => Promise<T>,
): Promise<T> {
  let status = ''
  const live = new LiveLine(() => status)
  try {
    return await work((table, rows) => {
      status = `${verb} ${table}: ${rows} rows`
      live.draw()
    })
  } finally {
    live.end()
  }
}

const sizeOf = ({ rows, bytes }: BackupReport) => `${rows} rows, ${(bytes / 1024 / 1024).toFixed(1)} MB`

export function addMigrate(program: Command): void {
  program
    .command('migrate')
    .description("bring the store's schema up to date (serve does it too)")
    .option('--json', 'print JSON')
    .action(migrate)
}

async function migrate({ json }: JsonFlag): Promise<void> {
  const { readStoreConfig } = await import('../../../node/config.ts')
  const { schemaState } = await import('../../../node/maintenance.ts')
  const config = readStoreConfig(processEnv)
  const { found } = await opening(config, schemaState(config.storage))
  const health = await withStore(config, (store) => store.health())
  const { engine, location, schemaVersion } = health
  if (json) return outJson({ engine, location, from: found, to: schemaVersion })
  if (found === schemaVersion) return say(`Nothing to do: ${location} is at schema version ${schemaVersion}.`)
  say(
    found === null
      ? `Made schema version ${schemaVersion} in ${location}.`
      : `Migrated ${location} from schema version ${found} to ${schemaVersion}.`,
  )
}
