import { copyFileSync, existsSync, mkdtempSync, rmSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { join } from 'node:path'
import type { World } from '@ichido/sdk/world'
import { SCHEMA_VERSION } from '../migrations/index.ts'
import { type Command, command, type Store } from '../port.ts'
import { exactlyOne, queryText, type Work } from '../statement.ts'
import { raiseEpoch, readLeadership } from '../system/leadership.ts'
import {
  BackupFile,
  BackupRefused,
  type BackupReport,
  checkBackup,
  discard,
  finishBackup,
  newManifest,
  OWN,
  pristineSums,
  putInPlace,
  reportOf,
} from './backup-file.ts'
import { emptyTable, insertRows, readTable, sameRows, type Table, TableDigest, type TableSum } from './table.ts'

export type { BackupReport } from './backup-file.ts'
export { BackupRefused } from './backup-file.ts'

interface CopyOptions {
  world: Pick<World, 'now' | 'uuid'>
  onProgress?: (table: string, rows: number) => void
}

/** There cannot have been more terms since the backup was made. */
const EPOCH_STEP = 1_000

/**
 * Copies the store's data at one instant into a file, while nodes use the same database. It leaves a complete file that
 * was read back, or none.
 */
export async function backupStore(
  store: Store,
  file: string,
  { world, onProgress, force = false }: CopyOptions & { force?: boolean },
): Promise<BackupReport> {
  refuseToReplace(file, force)
  const { schemaVersion } = await store.health()
  if (schemaVersion !== SCHEMA_VERSION) {
    throw new BackupRefused(
      `The store is at schema version ${schemaVersion}, this Ichido knows ${SCHEMA_VERSION}. Back it up with the newer Ichido.`,
    )
  }
  const temporary = `${file}.${world.uuid()}.partial`
  try {
    const backup = BackupFile.create(temporary)
    try {
      await store.write(copyInto(backup, store.engine, world.now(), onProgress))
    } finally {
      backup.close()
    }
    const manifest = finishBackup(temporary, file)
    refuseToReplace(file, force)
    putInPlace(temporary, file)
    return reportOf(manifest, file)
  } finally {
    discard(temporary)
  }
}

export function refuseToReplace(file: string, force: boolean): void {
  if (force || !existsSync(file)) return
  throw new BackupRefused(`${file} exists. Choose another name, or replace it with --force.`)
}

/** Moves a backup that a server made to its destination, perhaps on another disk. */
export function moveBackup(
  made: string,
  file: string,
  { world, force = false }: Pick<CopyOptions, 'world'> & { force?: boolean },
): BackupReport {
  refuseToReplace(file, force)
  const temporary = `${file}.${world.uuid()}.partial`
  try {
    copyFileSync(made, temporary)
    const manifest = checkBackup(temporary, file)
    putInPlace(temporary, file)
    rmSync(made)
    return reportOf(manifest, file)
  } finally {
    discard(temporary)
  }
}

/** Checks that a file is a complete backup; throws `BackupRefused` if it is not. */
export function verifyBackup(file: string): BackupReport & { created_at: string; schema_version: number } {
  const { created_at, schema_version, ...manifest } = checkBackup(file)
  return { ...reportOf(manifest, file), created_at, schema_version }
}

/** On PostgreSQL all pages are read from one snapshot, which neither waits nor blocks others. */
const USE_SNAPSHOT = {
  postgres: 'SET TRANSACTION ISOLATION LEVEL REPEATABLE READ, READ ONLY',
  sqlite: 'SELECT 1',
}

function copyInto(
  backup: BackupFile,
  engine: string,
  nowMs: number,
  onProgress: CopyOptions['onProgress'],
): Command<void> {
  return command('backup', function* work(): Work<void> {
    yield* queryText(USE_SNAPSHOT)
    backup.begin()
    const sums = new Map<string, TableSum>()
    for (const table of backup.tables) {
      const digest = new TableDigest()
      yield* readTable(table, (rows) => {
        backup.add(table, rows)
        digest.add(rows)
        onProgress?.(table.name, digest.value.rows)
      })
      sums.set(table.name, digest.value)
    }
    backup.commit(newManifest(engine, nowMs, sums))
  })
}

/**
 * Restores a backup of either engine into an empty store. It restores everything or nothing, and reads it back before
 * the commit. The new term is later than any that may have begun since the backup.
 */
export async function restoreStore(
  store: Store,
  file: string,
  { onProgress }: Pick<CopyOptions, 'onProgress'>,
): Promise<BackupReport & { epoch: number }> {
  const manifest = checkBackup(file)
  const folder = mkdtempSync(join(tmpdir(), 'ichido-restore-'))
  try {
    const backup = BackupFile.openCopy(file, join(folder, 'backup.db'))
    try {
      const epoch = await store.write(copyOut(backup, onProgress))
      await store.read(refreshStatistics(backup.tables))
      return { ...reportOf(manifest, file), epoch }
    } finally {
      backup.close()
    }
  } finally {
    rmSync(folder, { recursive: true })
  }
}

function copyOut(backup: BackupFile, onProgress: CopyOptions['onProgress']): Command<number> {
  const tables = backup.tables.filter((table) => !OWN.includes(table.name))
  const expected = new Map(tables.map((table) => [table.name, backup.sum(table)]))

  return command('restore', function* work(again): Work<number> {
    yield* queryText(lockAll(backup.tables))
    if (!(yield* holds(tables, pristineSums()))) {
      // An earlier try may have been committed without our knowledge.
      if (again && (yield* holds(tables, expected))) return yield* currentEpoch()
      throw new BackupRefused(
        'The store is not empty, and a restore would mix two histories. Restore into a new store: set DATA_DIR to a new folder, or DATABASE_URL or DATABASE_SCHEMA to a new database or schema.',
      )
    }
    for (const table of tables) {
      yield* emptyTable(table)
      yield* insertRows(
        table,
        counted(backup.pages(table), (rows) => onProgress?.(table.name, rows)),
      )
    }
    if (!(yield* holds(tables, expected))) throw new Error('The restored rows differ from the backup')
    const behind = Math.max(0, backup.epoch - (yield* currentEpoch()))
    return yield* raiseEpoch(behind + EPOCH_STEP).work(again)
  })
}

/** Reads at most one row more than expected, so a full table is noticed without reading all of it. */
function* holds(tables: readonly Table[], sums: ReadonlyMap<string, TableSum>): Work<boolean> {
  for (const table of tables) {
    const digest = new TableDigest()
    const expected = sums.get(table.name)
    yield* readTable(table, (rows) => digest.add(rows), (expected?.rows ?? 0) + 1)
    if (!sameRows(digest.value, expected)) return false
  }
  return true
}

function* counted<T>(pages: Iterable<T[]>, tell: (rows: number) => void): Generator<T[]> {
  let rows = 0
  for (const page of pages) {
    yield page
    rows += page.length
    tell(rows)
  }
}

function* currentEpoch(): Work<number> {
  return (yield* exactlyOne(readLeadership, {})).epoch
}

/** Keeps nodes on the same database from writing meanwhile. */
function lockAll(tables: readonly Table[]) {
  const names = tables.map((table) => `ichido.${table.name}`).join(', ')
  return { postgres: `LOCK TABLE ${names} IN EXCLUSIVE MODE`, sqlite: 'SELECT 1' }
}

/** With statistics of empty tables the planner would scan whole tables. */
function refreshStatistics(tables: readonly Table[]): Command<void> {
  return command('refresh_statistics', function* work(): Work<void> {
    for (const { name } of tables) {
      yield* queryText({ postgres: `ANALYZE ichido.${name}`, sqlite: 'SELECT 1' })
    }
  })
}
