import { statSync } from 'node:fs'
import type { Manifest } from './backup-file.ts'

export interface BackupReport {
  engine: string
  rows: number
  bytes: number
}

export function reportOf({ engine, tables }: Pick<Manifest, 'engine' | 'tables'>, file: string): BackupReport {
  const rows = Object.values(tables).reduce((sum, table) => sum + table.rows, 0)
  return { engine, rows, bytes: statSync(file).size }
}
