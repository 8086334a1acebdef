import { closeSync, constants, fstatSync, openSync, readlinkSync, readSync, realpathSync } from 'node:fs'
import { basename, dirname } from 'node:path'

/**
 * Files in the folder of a run. Its program can put anything in their place: a pipe that nobody writes to, a link to the
 * agent's own token, more than memory holds. So each is opened without following links or waiting, looked at through its
 * descriptor, which nobody can swap any more, and read up to a limit. Paths are absolute and have no links in them.
 */

/** A file that is not sent or read for what it is. It would be the same the next time. */
export class FileRefused extends Error {
  override readonly name = 'FileRefused'
}

const { O_RDONLY, O_DIRECTORY, O_NOFOLLOW, O_NONBLOCK } = constants
/** Notes that the agent keeps there itself. The largest is a report, with its result. */
const NOTE_BYTES_MAX = 64 * 1024 * 1024

/** A descriptor of the regular file at this very place; null when there is none. */
export function openRegular(path: string, access: number = O_RDONLY): number | null {
  const fd = openInPlace(path, access | O_NONBLOCK)
  if (fd === null) return null
  if (fstatSync(fd).isFile()) return fd
  closeSync(fd)
  throw notRegular(path)
}

/** Refuses a folder that is something else, or is elsewhere. */
export function requireFolder(path: string): void {
  const fd = openInPlace(path, O_RDONLY | O_DIRECTORY)
  if (fd !== null) closeSync(fd)
}

/** The whole text; null when there is no such file. */
export function readRegular(path: string, bytesMax: number): string | null {
  return reading(path, (fd, size) => {
    if (size > bytesMax) {
      throw new FileRefused(`${nameOf(path)} has ${size} bytes; at most ${bytesMax} are read`)
    }
    return textAt(fd, 0, size)
  })
}

/** The last so many bytes; null when there is no such file. */
export function readEnd(path: string, bytesMax: number): string | null {
  return reading(path, (fd, size) => textAt(fd, Math.max(0, size - bytesMax), Math.min(size, bytesMax)))
}

/** A note of the agent's own; null when there is none, or something else in its place. */
export function readNoteText(path: string): string | null {
  return unlessRefused(() => readRegular(path, NOTE_BYTES_MAX))
}

/** Null for a file that is refused: where there is something more important to tell. */
export function unlessRefused<T>(read: () => T): T | null {
  try {
    return read()
  } catch (error) {
    if (error instanceof FileRefused) return null
    throw error
  }
}

/** As a program knows it: it has no use for where its folder is. */
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
    // FreeBSD calls a link EMLINK. A folder is asked for by ENOTDIR, and a socket cannot be opened (ENXIO).
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
 * Where an open file is, by the system's own word. Without /proc (macOS) the path is looked at once more, and a link that
 * somebody puts on the way for just the moment of opening goes unnoticed.
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
