import { closeSync, openSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { addManifest, finishBackup, putInPlace } from './backup-file.ts'
import { type BackupReport, reportOf } from './backup-report.ts'

export interface BackupOrder {
  /** The database of an embedded store, which a node is working on. */
  database: string
  /** Where the copy grows; it must not exist. */
  temporary: string
  file: string
  nowMs: number
}

const BUSY_TIMEOUT_MS = 5_000

/** Copies an embedded store beside the node that owns it. `VACUUM INTO` reads one snapshot, and writers do not wait for it. */
export function backupBeside({ database, temporary, file, nowMs }: BackupOrder): BackupReport {
  // SQLite fills an empty file; a file that it made itself others could read.
  closeSync(openSync(temporary, 'wx', 0o600))
  const source = new DatabaseSync(database, { readOnly: true })
  try {
    source.exec(`PRAGMA busy_timeout = ${BUSY_TIMEOUT_MS}`)
    source.prepare('VACUUM INTO ?').run(temporary)
  } finally {
    source.close()
  }
  addManifest(temporary, nowMs)
  const manifest = finishBackup(temporary, file)
  putInPlace(temporary, file)
  return reportOf(manifest, file)
}
