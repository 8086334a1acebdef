import { chmodSync, closeSync, existsSync, mkdirSync, openSync, rmSync, statSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import type { DatabaseSync, StatementSync } from 'node:sqlite'
import { ALL_BUT_OWNER, PRIVATE } from '../../../core/node/file-modes.ts'
import { BadValue, isDiskFull, StoreFull } from '../../../core/node/store-errors.ts'
import { MIGRATIONS, requireOwnLayout, SCHEMA_VERSION } from '../../migrations/index.ts'
import { refusal, schemaVerdict, sqliteStatements } from '../../migrations/migration.ts'
import { type Command, type Store, type StoreHealth, StoreInUse, StoreRefused } from '../../port.ts'
import { BY_KEY, type Row, type SqlValue, type Statement, type Step, type Work } from '../../statement.ts'

interface SqliteOptions {
  /** The folder of the database; it belongs to one process at a time. Unset: in memory, for tests and simulations. */
  dataDir?: string
  now: () => number
  /** The size of the cache of prepared statements. */
  preparedMax?: number
  /** Open the store although a commit may be lost. Only for throw-away data. */
  allowNoFsync?: boolean
}

export const DATABASE_FILE = 'ichido.db'
const LOCK_FILE = 'lock.db'
const PROBE_FILE = 'room.probe'
/** Enough for a batch of submits and its indexes. */
const PROBE_BYTES = 1024 * 1024
const BUSY_TIMEOUT_MS = 5_000
const SQLITE_BUSY = 5
const SQLITE_IOERR = 10
const SQLITE_FULL = 13
const SQLITE_CANTOPEN = 14
const SQLITE_CONSTRAINT = 19
const SQLITE_MISMATCH = 20

export function openSqlite(options: SqliteOptions): Store {
  const { dataDir, now, preparedMax = 500 } = options
  const lock = dataDir === undefined ? null : takeFolder(dataDir)
  const location = dataDir === undefined ? ':memory:' : join(dataDir, DATABASE_FILE)
  const db = database(location, { open: false })
  try {
    db.open()
    db.exec(`PRAGMA journal_mode = WAL; PRAGMA synchronous = FULL; PRAGMA foreign_keys = ON;
      PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}; PRAGMA cache_size = -65536`)
    db.function('now_ms', { deterministic: false }, () => now())
    const found = durability(db)
    if (!isDurable(found, dataDir) && !options.allowNoFsync) {
      throw new StoreRefused(
        `SQLite does not sync commits to disk: ${JSON.stringify(found)}. Use another file system, or set ALLOW_NO_FSYNC=1 for data that may be lost.`,
      )
    }
    migrate(db, now())
  } catch (error) {
    if (db.isOpen) db.close()
    lock?.close()
    throw asStoreFull(error, dataDir)
  }

  const prepared = new Map<string, Prepared>()
  function prepare(text: string): Prepared {
    let entry = prepared.get(text)
    if (entry === undefined) {
      if (prepared.size >= preparedMax) prepared.clear()
      entry = prepareText(db, text)
      prepared.set(text, entry)
    }
    return entry
  }

  function perform(step: Step): Row[] {
    if (step.kind === 'query') return performOne(step.statement, step.params)
    const answer: Row[] = []
    let last: Row[] = []
    for (const row of step.rows) {
      const params = step.inTurn === undefined ? row : step.inTurn(row, last)
      if (params === null) break
      last = performOne(step.statement, params)
      answer.push(...last)
    }
    return answer
  }

  function performOne({ sqlite }: Statement, params: readonly SqlValue[]): Row[] {
    let last: Row[] = []
    for (const text of sqlite) last = prepare(text)(params)
    return last
  }

  function drive<T>(work: Work<T>): T {
    let next = work.next()
    while (!next.done) next = work.next(perform(next.value))
    return next.value
  }

  return {
    engine: 'sqlite',
    async write<T>(command: Command<T>): Promise<T> {
      try {
        db.exec('BEGIN IMMEDIATE')
        const answer = drive(command.work(false))
        db.exec('COMMIT')
        return answer
      } catch (error) {
        if (db.isTransaction) db.exec('ROLLBACK')
        throw isConstraint(error) ? new BadValue(String(error), { cause: error }) : asStoreFull(error, dataDir)
      }
    },
    async read<T>(command: Command<T>): Promise<T> {
      try {
        return drive(command.work(false))
      } catch (error) {
        throw asStoreFull(error, dataDir)
      }
    },
    async health(): Promise<StoreHealth> {
      const found = durability(db)
      return {
        engine: 'sqlite',
        location,
        schemaVersion: schemaVersion(db),
        durability: found,
        durable: isDurable(found, dataDir),
        pooled: false,
        clockSkewMs: 0,
      }
    },
    async requireRoom(): Promise<void> {
      if (dataDir !== undefined) requireRoomIn(dataDir)
    },
    // SQLite reuses the space of deleted rows at once.
    vacuum: async () => [],
    async close(): Promise<void> {
      prepared.clear()
      if (db.isOpen) db.close()
      if (lock?.isOpen) lock.close()
    },
  }
}

/** Not an import: a Node without SQLite could then not report that it is too old. */
function database(...args: ConstructorParameters<typeof DatabaseSync>): DatabaseSync {
  const { DatabaseSync } = process.getBuiltinModule('node:sqlite')
  return new DatabaseSync(...args)
}

function takeFolder(dataDir: string): DatabaseSync {
  try {
    mkdirSync(dataDir, { recursive: true, mode: PRIVATE.folder })
    for (const name of [LOCK_FILE, DATABASE_FILE]) keepPrivate(join(dataDir, name))
    return takeLock(dataDir)
  } catch (error) {
    throw asStoreFull(error, dataDir)
  }
}

/** The files that SQLite makes beside a database. They get the mode of the database. */
export const BESIDE = ['', '-wal', '-shm', '-journal']

/**
 * Makes a database that only its owner can read, whatever the umask, and tightens the mode of an existing one. It does not open
 * an existing file: closing the file would release the locks that this process has on it.
 */
function keepPrivate(database: string): void {
  try {
    closeSync(openSync(database, 'wx', PRIVATE.file))
  } catch (error) {
    if (!(error instanceof Error && 'code' in error && error.code === 'EEXIST')) throw error
  }
  for (const suffix of BESIDE) {
    const facts = statSync(database + suffix, { throwIfNoEntry: false })
    const mine = facts?.uid === process.getuid?.()
    if (facts !== undefined && mine && (facts.mode & ALL_BUT_OWNER) !== 0) chmodSync(database + suffix, PRIVATE.file)
  }
}

/** Refuses a second process on the same folder: each of two processes would believe to be alone. */
function takeLock(dataDir: string): DatabaseSync {
  const lock = database(join(dataDir, LOCK_FILE))
  try {
    lock.exec('PRAGMA locking_mode = EXCLUSIVE; BEGIN EXCLUSIVE')
  } catch (error) {
    lock.close()
    if (resultCode(error) !== SQLITE_BUSY) throw error
    throw new StoreInUse(
      `Another process, or another open() in this one, is using ${dataDir}. Stop it, use another folder (dataDir; for the server DATA_DIR), or use PostgreSQL (pool or databaseUrl; for the server DATABASE_URL) to run several nodes.`,
      { cause: error },
    )
  }
  return lock
}

type Prepared = (params: readonly SqlValue[]) => Row[]

/** `$3` may stand in a text several times, or before `$1`; node:sqlite binds bare `?` from left to right. */
function prepareText(db: DatabaseSync, text: string): Prepared {
  const order: number[] = []
  const sqlite = text.replace(/\bichido\./g, '').replace(BY_KEY, '$<key> = $<value>')
  const positional = sqlite.replace(/\$(\d+)/g, (_, n: string) => {
    order.push(Number(n) - 1)
    return '?'
  })
  const prepared: StatementSync = db.prepare(positional)
  return (params) => prepared.all(...order.map((i) => bindable(params[i]))) as Row[]
}

function bindable(value: SqlValue | undefined): string | number | null {
  if (value === undefined) throw new TypeError('A statement has more parameters than it was given')
  return typeof value === 'boolean' ? Number(value) : value
}

function durability(db: DatabaseSync): Record<string, string> {
  const read = (name: string) => String(Object.values(db.prepare(`PRAGMA ${name}`).get() ?? {})[0])
  return { journal_mode: read('journal_mode'), synchronous: read('synchronous') }
}

function isDurable(found: Record<string, string>, dataDir: string | undefined): boolean {
  return dataDir === undefined || (found.journal_mode === 'wal' && Number(found.synchronous) >= 2)
}

/** The primary result code. The higher bits extend it. */
function resultCode(error: unknown): number {
  return error instanceof Error && 'errcode' in error ? Number(error.errcode) & 0xff : -1
}

function isConstraint(error: unknown): boolean {
  return [SQLITE_CONSTRAINT, SQLITE_MISMATCH].includes(resultCode(error))
}

/** Throws `StoreRefused` if the database has an older layout. */
function schemaVersion(db: DatabaseSync): number {
  const recorded = db.prepare(`SELECT 1 FROM sqlite_schema WHERE type = 'table' AND name = 'schema_migrations'`).get()
  if (recorded !== undefined) {
    requireOwnLayout(db.prepare('SELECT name FROM schema_migrations WHERE version = 1').get()?.name)
  }
  return Number(Object.values(db.prepare('PRAGMA user_version').get() ?? {})[0])
}

/** The version of the schema in a folder, read without opening it as its owner; null when there is no store yet. */
export function peekSqlite(dataDir: string): number | null {
  const file = join(dataDir, DATABASE_FILE)
  if (!existsSync(file)) return null
  const db = database(file, { readOnly: true })
  try {
    return schemaVersion(db)
  } finally {
    db.close()
  }
}

export function migrate(db: DatabaseSync, nowMs: number): void {
  db.exec('BEGIN IMMEDIATE')
  try {
    const found = schemaVersion(db)
    if (schemaVerdict(found, SCHEMA_VERSION) === 'refuse') throw new StoreRefused(refusal(found, SCHEMA_VERSION))
    db.exec(
      'CREATE TABLE IF NOT EXISTS schema_migrations (version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at INTEGER NOT NULL) STRICT',
    )
    for (const migration of MIGRATIONS.filter((m) => m.version > found)) {
      for (const statement of sqliteStatements(migration)) db.exec(statement)
      db.prepare('INSERT INTO schema_migrations VALUES (?, ?, ?)').run(migration.version, migration.name, nowMs)
      // Written inside the same transaction as the tables: a crash leaves both or neither.
      db.exec(`PRAGMA user_version = ${migration.version}`)
    }
    db.exec('COMMIT')
  } catch (error) {
    // SQLite may have rolled back by itself, as it does on a full disk.
    if (db.isTransaction) db.exec('ROLLBACK')
    throw error
  }
}

/**
 * Throws `StoreFull` unless a file of this size can be written to the folder. Only a write can tell: quotas and reserved blocks
 * do not show in the free space of the file system.
 */
export function requireRoomIn(folder: string, bytes = PROBE_BYTES): void {
  const file = join(folder, PROBE_FILE)
  try {
    writeFileSync(file, Buffer.alloc(bytes), { flush: true })
  } catch (error) {
    throw isDiskFull(error) ? storeFull(error) : error
  } finally {
    rmSync(file, { force: true })
  }
}

/**
 * Replaces an error of SQLite by `StoreFull` if the disk is full. When a quota is used up, or the file of the shared index cannot
 * grow, SQLite only says that a write failed. Then a write of our own finds out why.
 */
export function asStoreFull(error: unknown, folder: string | undefined): unknown {
  const code = resultCode(error)
  if (code === SQLITE_FULL || isDiskFull(error)) return storeFull(error)
  if (folder === undefined || (code !== SQLITE_IOERR && code !== SQLITE_CANTOPEN)) return error
  try {
    requireRoomIn(folder)
    return error
  } catch (found) {
    return found instanceof StoreFull ? storeFull(error) : error
  }
}

function storeFull(cause: unknown): StoreFull {
  return new StoreFull('store', 'that holds DATA_DIR', cause)
}
