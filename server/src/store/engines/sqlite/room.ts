import { rmSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { isDiskFull, StoreFull } from '../../../core/node/store-errors.ts'

const PROBE_FILE = 'room.probe'
/** Enough for a batch of submits and its indexes. */
const ROOM_BYTES = 1024 * 1024
const SQLITE_IOERR = 10
const SQLITE_FULL = 13
const SQLITE_CANTOPEN = 14

/**
 * Throws `StoreFull` unless a file of this size can be written to the folder. Only a write can tell: quotas and reserved blocks
 * do not show in the free space of the file system.
 */
export function requireRoomIn(folder: string, bytes = ROOM_BYTES): void {
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
 * `StoreFull` in the place of what SQLite threw for lack of room. When a quota is used up, or the file of the shared index
 * cannot grow, SQLite only says that a write failed: then a write of our own finds out why.
 */
export function asStoreFull(error: unknown, folder: string | undefined): unknown {
  const code = error instanceof Error && 'errcode' in error ? Number(error.errcode) & 0xff : 0
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
