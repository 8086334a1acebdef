import { accessSync, constants, statfsSync, statSync } from 'node:fs'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'

// The path of a unix socket holds at most 103 bytes on macOS and 107 on Linux.
const LONGEST_TMP = 50

/** For testing the downloads: pretends that nothing is installed on this machine. */
const nothingInstalled = process.env.ICHIDO_NO_SYSTEM_SERVICES === '1'

export function onPath(...names: string[]): string | undefined {
  if (nothingInstalled) return undefined
  const folders = (process.env.PATH ?? '').split(delimiter).filter(Boolean)
  return names.flatMap((name) => folders.map((folder) => join(folder, name))).find(executable)
}

export const systemFolders = (folders: string[]): string[] => (nothingInstalled ? [] : folders)

export function executable(path: string): boolean {
  try {
    accessSync(path, constants.X_OK)
    return statSync(path).isFile()
  } catch {
    return false
  }
}

export const shortTmp = (): string => (tmpdir().length <= LONGEST_TMP ? tmpdir() : '/tmp')

const MEMORY = '/dev/shm'
const GIB = 1024 ** 3

/** A folder in memory for several gigabytes of files, or the usual temporary folder if there is too little memory. */
export function memoryTmp(): string {
  try {
    const { bavail, bsize } = statfsSync(MEMORY)
    accessSync(MEMORY, constants.W_OK)
    if (bavail * bsize >= 8 * GIB && process.availableMemory() >= 12 * GIB) return MEMORY
  } catch {
    // Not every system has this folder.
  }
  return shortTmp()
}
