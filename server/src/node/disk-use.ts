import { statfs } from 'node:fs/promises'
import { join } from 'node:path'
import type { Disks } from '../services/deps.ts'

interface Folders {
  storage: object | { dataDir: string }
  artifacts?: { folder?: string | undefined } | undefined
}

/** The disks of the folders that a node writes to: none, with PostgreSQL and without artifacts. */
export function disksOf({ storage, artifacts = {} }: Folders): Disks {
  const data = 'dataDir' in storage ? [storage.dataDir] : []
  const { folder } = artifacts
  const folders = folder === undefined || folder === join(data[0] ?? '', 'artifacts') ? data : [...data, folder]
  return () => Promise.all(folders.map(async (folder) => ({ folder, freeRatio: await freeRatio(folder) })))
}

/** As df has it: what is kept for root is neither used nor free. */
async function freeRatio(folder: string): Promise<number> {
  const { blocks, bfree, bavail } = await statfs(folder)
  const usable = blocks - bfree + bavail
  return usable === 0 ? 1 : bavail / usable
}
