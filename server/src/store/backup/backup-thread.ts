import { closeSync, openSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { parentPort, workerData } from 'node:worker_threads'
import { addManifest, type BackupReport, finishBackup, putInPlace, reportOf } from './backup-file.ts'

export interface BackupOrder {
  /** The database of an embedded store that a node uses. */
  database: string
  /** The path of the incomplete copy; it must not exist. */
  temporary: string
  file: string
  nowMs: number
}

const BUSY_TIMEOUT_MS = 5_000

/** Copies an embedded store while a node uses it. `VACUUM INTO` reads one snapshot, and writers do not wait for it. */
function backupBeside({ database, temporary, file, nowMs }: BackupOrder): BackupReport {
  // SQLite accepts an empty file. Other users could read a file that SQLite created.
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

// This file is a thread: copying and reading back takes seconds, and the node must not stop meanwhile.
parentPort?.postMessage(backupBeside(workerData as BackupOrder))
