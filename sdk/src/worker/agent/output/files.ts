import {
  closeSync,
  constants,
  fstatSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  readlinkSync,
  readSync,
  realpathSync,
  renameSync,
  rmSync,
  writeFileSync,
} from 'node:fs'
import { basename, dirname } from 'node:path'

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK } = constants
/** The limit for the agent's own notes; the largest is a report with its result. */
const NOTE_BYTES_MAX = 64 * 1024 * 1024

/** Replaces a file atomically, and so that it survives a power cut: writes a new file, syncs, renames, syncs the folder. */
export function writeDurably(path: string, content: string, mode = 0o600): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const aside = `${path}.new`
  const fd = openNew(aside, mode)
  try {
    // Not writeSync, which does not fail if a full disk takes only a part.
    writeFileSync(fd, content)
    fsyncSync(fd)
  } finally {
    closeSync(fd)
  }
  renameSync(aside, path)
  const folder = openSync(dirname(path), 'r')
  try {
    fsyncSync(folder)
  } finally {
    closeSync(folder)
  }
}

/** Replaces a file atomically. It may be lost in a power cut, so it costs no sync. */
export function writeWhole(path: string, content: string): void {
  const aside = `${path}.new`
  const fd = openNew(aside, 0o600)
  try {
    writeFileSync(fd, content)
  } finally {
    closeSync(fd)
  }
  renameSync(aside, path)
}

/** Never writes through a link or into a pipe that a program has put there. */
function openNew(path: string, mode: number): number {
  rmSync(path, { recursive: true, force: true })
  return openSync(path, 'wx', mode)
}

/** Returns null if the file does not exist. */
export function readIfThere(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null
    throw error
  }
}

/** Returns undefined if the text is not JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}

/**
 * The functions below read files in the folder of a run. Its program can put anything in their place: a pipe without a writer,
 * a link to the agent's token, more than memory holds. So each file is opened without following links or waiting, checked
 * through its descriptor, which cannot be swapped, and read up to a limit. Paths are absolute and have no links in them.
 */

/** A file is not sent or read because of its type, place or size; a retry would not help. */
export class FileRefused extends Error {
  override readonly name = 'FileRefused'
}

/** Opens the regular file at exactly this path; null if there is none. */
export function openRegular(path: string, access: number = O_RDONLY): number | null {
  const fd = openInPlace(path, access | O_NONBLOCK)
  if (fd === null) return null
  if (fstatSync(fd).isFile()) return fd
  closeSync(fd)
  throw notRegular(path)
}

/** Throws if the path is not a folder, or leads elsewhere. */
export function requireFolder(path: string): void {
  const fd = openInPlace(path, O_RDONLY | O_DIRECTORY)
  if (fd !== null) closeSync(fd)
}

/** Reads the whole text; null if there is no such file. */
export function readRegular(path: string, bytesMax: number): string | null {
  return reading(path, (fd, size) => {
    if (size > bytesMax) {
      throw new FileRefused(`${nameOf(path)} has ${size} bytes; at most ${bytesMax} are read`)
    }
    return textAt(fd, 0, size)
  })
}

/** Reads the last bytes; null if there is no such file. */
export function readEnd(path: string, bytesMax: number): string | null {
  return reading(path, (fd, size) => textAt(fd, Math.max(0, size - bytesMax), Math.min(size, bytesMax)))
}

/** Reads a note of the agent itself; null if it does not exist or was replaced. */
export function readNoteText(path: string): string | null {
  return unlessRefused(() => readRegular(path, NOTE_BYTES_MAX))
}

/** Returns null for a refused file, where another error matters more. */
export function unlessRefused<T>(read: () => T): T | null {
  try {
    return read()
  } catch (error) {
    if (error instanceof FileRefused) return null
    throw error
  }
}

/** The path inside the run's folder, as its program knows it. */
export function nameOf(path: string): string {
  const folder = basename(dirname(path))
  return folder === 'outputs' ? `outputs/${basename(path)}` : basename(path)
}

function openInPlace(path: string, flags: number): number | null {
  let fd: number
  try {
    fd = openSync(path, flags | O_NOFOLLOW, 0o600)
  } catch (error) {
    const code = error instanceof Error && 'code' in error ? error.code : null
    if (code === 'ENOENT') return null
    // FreeBSD reports a link as EMLINK. ENXIO means a socket.
    if (code === 'ELOOP' || code === 'EMLINK') throw new FileRefused(`${nameOf(path)} is a symbolic link`)
    if (code === 'ENOTDIR') throw new FileRefused(`${nameOf(path)} is not a folder, or is not inside one`)
    if (code === 'ENXIO') throw notRegular(path)
    throw error
  }
  if (placeOf(fd, path) === path) return fd
  closeSync(fd)
  throw new FileRefused(`${nameOf(path)} is reached through a symbolic link`)
}

/**
 * The real path of an open file. Without /proc (macOS) the path is resolved again, so a link that existed only while the file
 * was opened goes unnoticed.
 */
function placeOf(fd: number, path: string): string {
  try {
    return readlinkSync(`/proc/self/fd/${fd}`)
  } catch {
    return realpathSync(path)
  }
}

function reading<T>(path: string, read: (fd: number, size: number) => T): T | null {
  const fd = openRegular(path)
  if (fd === null) return null
  try {
    return read(fd, fstatSync(fd).size)
  } finally {
    closeSync(fd)
  }
}

function textAt(fd: number, start: number, length: number): string {
  const bytes = Buffer.alloc(length)
  let filled = 0
  while (filled < length) {
    const read = readSync(fd, bytes, filled, length - filled, start + filled)
    if (read === 0) break
    filled += read
  }
  return bytes.toString('utf8', 0, filled)
}

function notRegular(path: string): FileRefused {
  return new FileRefused(`${nameOf(path)} is not a regular file`)
}
