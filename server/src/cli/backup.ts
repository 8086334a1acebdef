import { resolve } from 'node:path'
import type { Command } from 'commander'
import type { BackupReport } from '../maintenance.ts'
import { Failure } from './exit.ts'
import { opening, withStore } from './opening.ts'
import { surroundings } from './surroundings.ts'
import { LiveLine, outJson, say } from './terminal.ts'

interface BackupFlags {
  restore?: boolean
  force?: boolean
  json?: boolean
}

export function addBackup(program: Command): void {
  program
    .command('backup <file>')
    .description('copy all that the store holds into one file, or restore such a file into an empty store')
    .option('--restore', 'restore the file; it may be of the other engine')
    .option('--force', 'replace an existing file')
    .option('--json', 'print JSON')
    .addHelpText('after', ABOUT)
    .action(backup)
}

const ABOUT = `
A PostgreSQL store can be backed up while servers work on it; an embedded store must be stopped first.
A backup of one engine can be restored into the other: that is how to move from SQLite to PostgreSQL.`

async function backup(name: string, { restore = false, force = false, json }: BackupFlags): Promise<void> {
  const { readStoreConfig } = await import('../config.ts')
  const { backupStore, restoreStore, schemaState, StoreInUse } = await import('../maintenance.ts')
  const { realWorld: world } = await import('../world.ts')
  const config = readStoreConfig(surroundings)
  const file = resolve(name)
  if (!restore && (await opening(config, schemaState(config.storage))).verdict === 'none') {
    const where = 'dataDir' in config.storage ? config.storage.dataDir : `the schema ${config.storage.schema}`
    throw new Failure(`There is no store in ${where}.`, 'Set DATA_DIR or DATABASE_URL to the one to back up.')
  }
  let status = ''
  const live = new LiveLine(() => status)
  const onProgress = (table: string, rows: number) => {
    status = `${restore ? 'Restoring' : 'Copying'} ${table}: ${rows} rows`
    live.draw()
  }
  try {
    const done = await withStore<BackupReport & { epoch?: number }>(config, (store) =>
      restore ? restoreStore(store, file, { onProgress }) : backupStore(store, file, { world, onProgress, force }),
    )
    live.end()
    if (json) return outJson({ file, ...done })
    const size = `${done.rows} rows, ${(done.bytes / 1024 / 1024).toFixed(1)} MB, read back and compared`
    if (restore) say(`Restored ${file} (${size}). The leader's epoch is ${done.epoch} now.`)
    else say(`Backed up to ${file} (${size}).`)
  } catch (error) {
    // Its own advice, another folder, would be a backup of nothing.
    if (restore || !(error instanceof StoreInUse) || !('dataDir' in config.storage)) throw error
    throw new Failure(
      `A running server uses the store in ${config.storage.dataDir}.`,
      'Stop it for the backup; only a PostgreSQL store can be backed up while servers work on it.',
    )
  } finally {
    live.end()
  }
}
