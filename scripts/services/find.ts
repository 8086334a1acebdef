import { accessSync, constants, statSync } from 'node:fs'
import { createServer } from 'node:net'
import { tmpdir } from 'node:os'
import { delimiter, join } from 'node:path'

// The path of a unix socket holds at most 103 bytes on macOS and 107 on Linux.
const LONGEST_TMP = 50

/** For a trial of the paths that fetch: as if nothing were installed on this machine. */
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

/** Somebody else may take the port before it is used: the caller tries again with another one. */
export function freePort(): Promise<number> {
  return new Promise((resolve, reject) => {
    const server = createServer()
    server.once('error', reject)
    server.listen(0, '127.0.0.1', () => {
      const address = server.address()
      server.close(() =>
        address && typeof address === 'object' ? resolve(address.port) : reject(new Error('no port')),
      )
    })
  })
}
