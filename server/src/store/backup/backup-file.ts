import { createHash } from 'node:crypto'
import {
  appendFileSync,
  closeSync,
  copyFileSync,
  existsSync,
  fsyncSync,
  openSync,
  readSync,
  renameSync,
  rmSync,
  statSync,
  truncateSync,
} from 'node:fs'
import { dirname, resolve } from 'node:path'
import { DatabaseSync } from 'node:sqlite'
import { z } from 'zod'
import { AdvisedError } from '../../core/node/store-errors.ts'
import { migrate } from '../engines/sqlite/sqlite.ts'
import { SCHEMA_VERSION } from '../migrations/index.ts'
import { bytesOf, plain, quoted, type Table, TableDigest, type TableSum, type Values } from './table.ts'

/** A backup or a restore was refused; the message says why, and what to do. The store and the file are unchanged. */
export class BackupRefused extends AdvisedError {
  override readonly name = 'BackupRefused'
}

const FORMAT = 2
/** This format has no seal, only checksums of its tables. */
const UNSEALED_FORMAT = 1
const BATCH_ROWS_MAX = 1_000
const BATCH_BYTES_MAX = 4 * 1024 * 1024

const manifestShape = z.object({
  format: z.int(),
  engine: z.string(),
  schema_version: z.int(),
  created_at: z.string(),
  tables: z.record(z.string(), z.object({ rows: z.int(), sum: z.string() })),
})
type Manifest = z.output<typeof manifestShape>

const MANIFEST_TABLE = 'CREATE TABLE backup_manifest (manifest TEXT NOT NULL) STRICT'

/** Tables that are not copied. */
const NOT_COPIED = ['schema_migrations', 'backup_manifest']

/** A backup: an SQLite database with the store's schema, a manifest of its content, and a seal. */
export class BackupFile {
  readonly path: string
  readonly tables: readonly Table[]
  readonly #db: DatabaseSync

  constructor(path: string, db: DatabaseSync) {
    this.path = path
    this.#db = db
    this.tables = listTables(db)
  }

  /** Creates an empty backup that other users cannot read: it will contain payloads and hashes of tokens. */
  static create(path: string): BackupFile {
    closeSync(openSync(path, 'wx', 0o600))
    const db = new DatabaseSync(path)
    // The file is synced when it is complete; until then nobody needs it.
    db.exec('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF')
    migrate(db, 0)
    db.exec(MANIFEST_TABLE)
    return new BackupFile(path, db)
  }

  /** Opens a checked copy of a backup, migrated to the current schema. */
  static openCopy(file: string, copy: string): BackupFile {
    copyFileSync(file, copy)
    checkBackup(copy, file)
    const sealed = checkSeal(copy)
    if (sealed !== null && 'bytes' in sealed) truncateSync(copy, sealed.bytes)
    const db = new DatabaseSync(copy)
    try {
      db.exec('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; PRAGMA trusted_schema = OFF')
      migrate(db, 0)
      requireOwnTables(listTables(db), file)
      return new BackupFile(copy, db)
    } catch (error) {
      db.close()
      throw error
    }
  }

  /** Starts again, and removes what was written before. */
  begin(): void {
    if (this.#db.isTransaction) this.#db.exec('COMMIT')
    this.#db.exec('BEGIN')
    for (const table of this.tables) this.#db.exec(`DELETE FROM ${table.name}`)
  }

  add(table: Table, rows: readonly Values[]): void {
    const marks = table.columns.map(() => '?').join(', ')
    const insert = this.#db.prepare(`INSERT INTO ${table.name} (${names(table)}) VALUES (${marks})`)
    for (const row of rows) insert.run(...row)
  }

  commit(manifest: Manifest): void {
    this.#db.prepare('INSERT INTO backup_manifest VALUES (?)').run(JSON.stringify(manifest))
    this.#db.exec('COMMIT')
  }

  *pages(table: Table): Generator<Values[]> {
    let page: Values[] = []
    let bytes = 0
    for (const row of this.#db.prepare(`SELECT ${names(table)} FROM ${table.name}`).iterate()) {
      const values = table.columns.map((column) => plain(row, column))
      page.push(values)
      bytes += bytesOf(values)
      if (page.length < BATCH_ROWS_MAX && bytes < BATCH_BYTES_MAX) continue
      yield page
      page = []
      bytes = 0
    }
    if (page.length > 0) yield page
  }

  sum(table: Table): TableSum {
    const digest = new TableDigest()
    for (const page of this.pages(table)) digest.add(page)
    return digest.value
  }

  /** The leader's term when the backup was made. */
  get epoch(): number {
    return Number(this.#db.prepare('SELECT epoch FROM leadership WHERE id = 1').get()?.epoch)
  }

  close(): void {
    this.#db.close()
  }
}

/** Makes a backup of a copy of an SQLite store's database. */
export function addManifest(path: string, nowMs: number): void {
  const db = new DatabaseSync(path)
  try {
    db.exec('PRAGMA journal_mode = OFF; PRAGMA synchronous = OFF; BEGIN')
    const file = new BackupFile(path, db)
    db.exec(MANIFEST_TABLE)
    file.commit(newManifest('sqlite', nowMs, new Map(file.tables.map((table) => [table.name, file.sum(table)]))))
  } finally {
    db.close()
  }
}

/** Calls `use` with a new, empty store. */
function withPristine<T>(use: (file: BackupFile) => T): T {
  const db = new DatabaseSync(':memory:')
  try {
    migrate(db, 0)
    return use(new BackupFile(':memory:', db))
  } finally {
    db.close()
  }
}

export function pristineSums(): Map<string, TableSum> {
  return withPristine((file) => new Map(file.tables.map((table) => [table.name, file.sum(table)])))
}

/**
 * Names become parts of statements, so a restore accepts only its own tables: a checksum does not show who made the
 * file.
 */
function requireOwnTables(found: readonly Table[], file: string): void {
  const own = withPristine(({ tables }) => tables.map(shapeOf))
  const strange = found.find((table) => !own.includes(shapeOf(table)))
  if (strange !== undefined || found.length !== own.length) {
    const which = strange === undefined ? 'lacks a table' : `has another table ${JSON.stringify(strange.name)}`
    throw new BackupRefused(`${file} is not a backup made by \`ichido backup\`: it ${which}`)
  }
}

const shapeOf = ({ name, columns, primaryKey }: Table) => JSON.stringify([name, columns, primaryKey])

/** Checks a backup against its seal, and each table against its manifest. `name` is the file's name for people. */
export function checkBackup(path: string, name = path): Manifest {
  if (!existsSync(path)) throw new BackupRefused(`There is no file ${name}`)
  const sealed = checkSeal(path)
  if (sealed !== null && 'problem' in sealed) throw damaged(name, sealed.problem)
  const db = new DatabaseSync(path, { readOnly: true })
  try {
    const manifest = readManifest(db, path, name)
    if (manifest.format > FORMAT || manifest.schema_version > SCHEMA_VERSION) {
      throw new BackupRefused(
        `${name} was made by a newer Ichido (schema version ${manifest.schema_version}, this one knows ${SCHEMA_VERSION}). Restore it with the newer Ichido.`,
      )
    }
    if (sealed === null && manifest.format !== UNSEALED_FORMAT) throw damaged(name, 'its end is missing')
    const backup = new BackupFile(path, db)
    for (const table of backup.tables) {
      const { rows, sum } = backup.sum(table)
      const expected = manifest.tables[table.name]
      if (rows === expected?.rows && sum === expected.sum) continue
      const counts = `${rows} rows, ${expected?.rows ?? 0} expected`
      throw damaged(name, `the table ${table.name} differs from the table that was backed up (${counts})`)
    }
    return manifest
  } catch (error) {
    throw isSqliteError(error) ? damaged(name, error.message) : error
  } finally {
    db.close()
  }
}

function damaged(name: string, why: string): BackupRefused {
  return new BackupRefused(`${name} is damaged: ${why}. Use another backup.`)
}

function readManifest(db: DatabaseSync, path: string, name: string): Manifest {
  try {
    const isBackup = db.prepare("SELECT 1 FROM sqlite_schema WHERE name = 'backup_manifest'").get() !== undefined
    const row = isBackup ? db.prepare('SELECT manifest FROM backup_manifest').get() : undefined
    return manifestShape.parse(JSON.parse(String(row?.manifest)))
  } catch (error) {
    const unreadable = isSqliteError(error) && beginsAsDatabase(path)
    const what = unreadable
      ? 'begins like a backup, but is incomplete or damaged. Copy it again, or use another backup.'
      : 'is not a backup made by `ichido backup`'
    throw new BackupRefused(`${name} ${what}`, { cause: error })
  }
}

const MAGIC = 'SQLite format 3\0'

function beginsAsDatabase(file: string): boolean {
  const handle = openSync(file, 'r')
  try {
    const head = Buffer.alloc(MAGIC.length)
    readSync(handle, head, 0, head.length, 0)
    return head.toString('latin1') === MAGIC
  } finally {
    closeSync(handle)
  }
}

function isSqliteError(error: unknown): error is Error {
  return error instanceof Error && 'code' in error && error.code === 'ERR_SQLITE_ERROR'
}

export function newManifest(engine: string, createdAtMs: number, tables: Map<string, TableSum>): Manifest {
  return {
    format: FORMAT,
    engine,
    schema_version: SCHEMA_VERSION,
    created_at: new Date(createdAtMs).toISOString(),
    tables: Object.fromEntries(tables),
  }
}

/** Seals a complete file, and reads it back. */
export function finishBackup(path: string, name: string): Manifest {
  seal(path)
  return checkBackup(path, name)
}

/** After this the file survives a power failure under its final name. */
export function putInPlace(temporary: string, file: string): void {
  sync(temporary)
  renameSync(temporary, file)
  sync(dirname(resolve(file)))
}

function sync(path: string): void {
  const fd = openSync(path, 'r')
  try {
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
}

export function discard(path: string): void {
  for (const name of [path, `${path}-journal`, `${path}-wal`, `${path}-shm`]) rmSync(name, { force: true })
}

function names(table: Table): string {
  return table.columns.map(quoted).join(', ')
}

/** A name that needs no quotes in a statement. Views and triggers of the file would run code. */
const PLAIN_NAME = /^[a-z_][a-z0-9_]*$/

function listTables(db: DatabaseSync): Table[] {
  const found = db
    .prepare(
      "SELECT type, name FROM sqlite_schema WHERE type <> 'index' AND name NOT LIKE 'sqlite\\_%' ESCAPE '\\' ORDER BY name",
    )
    .all()
  const tables = found.map((row) => String(row.name))
  const strange = found.find((row) => row.type !== 'table' || !PLAIN_NAME.test(String(row.name)))
  if (strange !== undefined) {
    throw new BackupRefused(`The file has a ${strange.type} ${JSON.stringify(strange.name)}, which is not Ichido's`)
  }
  return tables.filter((name) => !NOT_COPIED.includes(name)).map((name) => describeTable(db, name))
}

function describeTable(db: DatabaseSync, name: string): Table {
  const columns = db.prepare('SELECT name, pk FROM pragma_table_info(?) ORDER BY cid').all(name)
  const strange = columns.find((column) => !PLAIN_NAME.test(String(column.name)))
  if (strange !== undefined) {
    throw new BackupRefused(`The file has a column ${JSON.stringify(strange.name)}, which is not Ichido's`)
  }
  const key = columns.filter((column) => Number(column.pk) > 0).sort((a, b) => Number(a.pk) - Number(b.pk))
  return { name, columns: columns.map((column) => String(column.name)), primaryKey: key.map((c) => String(c.name)) }
}

export interface BackupReport {
  engine: string
  rows: number
  bytes: number
}

/**
 * Tables that a restore does not overwrite: the leader's term, which it only raises, the watermark of the store's
 * Redis, and the places of webhooks.
 */
export const OWN: readonly string[] = ['leadership', 'relay_watermark', 'webhook_places']

/** Counts the rows that a restore brings back. */
export function reportOf({ engine, tables }: Pick<Manifest, 'engine' | 'tables'>, file: string): BackupReport {
  const restored = Object.entries(tables).filter(([name]) => !OWN.includes(name))
  const rows = restored.reduce((sum, [, table]) => sum + table.rows, 0)
  return { engine, rows, bytes: statSync(file).size }
}

/** The last line of a backup: the number of bytes before it, and their SHA-256. SQLite does not read it. */
const SEAL = /^\nichido-backup ([0-9a-f]{16}) ([0-9a-f]{64})\n$/
const SEAL_BYTES = 97
const READ_BYTES = 1024 * 1024

export function seal(file: string): void {
  const { size } = statSync(file)
  appendFileSync(file, `\nichido-backup ${size.toString(16).padStart(16, '0')} ${sha256(file, size)}\n`)
}

/** The number of sealed bytes, or why the seal does not match; null if the file has no seal. */
export function checkSeal(file: string): { bytes: number } | { problem: string } | null {
  const bytes = statSync(file).size - SEAL_BYTES
  const found = bytes < 0 ? null : SEAL.exec(tail(file, bytes))
  if (found === null) return null
  const [, length = '', sum] = found
  if (Number.parseInt(length, 16) !== bytes) {
    return { problem: `it has ${bytes} bytes, ${Number.parseInt(length, 16)} were written` }
  }
  return sha256(file, bytes) === sum ? { bytes } : { problem: 'its checksum does not match' }
}

function tail(file: string, from: number): string {
  const handle = openSync(file, 'r')
  try {
    const found = Buffer.alloc(SEAL_BYTES)
    readSync(handle, found, 0, SEAL_BYTES, from)
    return found.toString('latin1')
  } finally {
    closeSync(handle)
  }
}

/** Reads in parts, because a backup may be larger than the memory. */
function sha256(file: string, bytes: number): string {
  const hash = createHash('sha256')
  const part = Buffer.alloc(READ_BYTES)
  const handle = openSync(file, 'r')
  try {
    for (let at = 0; at < bytes; ) {
      const count = readSync(handle, part, 0, Math.min(READ_BYTES, bytes - at), at)
      if (count === 0) break
      hash.update(part.subarray(0, count))
      at += count
    }
  } finally {
    closeSync(handle)
  }
  return hash.digest('hex')
}
