import {
  closeSync,
  fstatSync,
  fsyncSync,
  mkdirSync,
  openSync,
  readFileSync,
  readSync,
  renameSync,
  writeFileSync,
} from 'node:fs'
import { dirname } from 'node:path'

/** Whole or not at all, and there after a power cut: written aside, synced, renamed, and the folder synced. */
export function writeDurably(path: string, content: string, mode = 0o600): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const aside = `${path}.new`
  const fd = openSync(aside, 'w', mode)
  try {
    // Not writeSync, which says nothing when a full disk takes only a part.
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

/** Whole or not at all for whoever comes after this process; not for after a power cut, and so at no cost. */
export function writeWhole(path: string, content: string): void {
  writeFileSync(`${path}.new`, content, { mode: 0o600 })
  renameSync(`${path}.new`, path)
}

/** Null when there is no such file. */
export function readIfThere(path: string): string | null {
  try {
    return readFileSync(path, 'utf8')
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'ENOENT') return null
    throw error
  }
}

/** The last so many bytes of a file. */
export function readEnd(path: string, bytesMax: number): string {
  const fd = openSync(path, 'r')
  try {
    const { size } = fstatSync(fd)
    const part = Buffer.alloc(Math.min(size, bytesMax))
    const read = readSync(fd, part, 0, part.length, size - part.length)
    return part.toString('utf8', 0, read)
  } finally {
    closeSync(fd)
  }
}

/** Undefined when it is no JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}
