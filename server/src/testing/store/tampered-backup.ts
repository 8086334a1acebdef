import { copyFileSync, truncateSync } from 'node:fs'
import { DatabaseSync } from 'node:sqlite'
import { checkSeal, seal } from '../../store/backup/backup-file.ts'

/** A copy of a backup that was changed and sealed again: a seal detects damage, not the author of the file. */
export function tamper(file: string, copy: string, sql: string): void {
  copyFileSync(file, copy)
  const sealed = checkSeal(copy)
  if (sealed === null || 'problem' in sealed) throw new Error('a backup is sealed')
  truncateSync(copy, sealed.bytes)
  const db = new DatabaseSync(copy)
  db.exec(sql)
  db.close()
  seal(copy)
}
