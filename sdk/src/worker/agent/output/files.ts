import { closeSync, fsyncSync, mkdirSync, openSync, readFileSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'

/** Whole or not at all, and there after a power cut: written aside, synced, renamed, and the folder synced. */
export function writeDurably(path: string, content: string, mode = 0o600): void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const aside = `${path}.new`
  const fd = openNew(aside, mode)
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
  const aside = `${path}.new`
  const fd = openNew(aside, 0o600)
  try {
    writeFileSync(fd, content)
  } finally {
    closeSync(fd)
  }
  renameSync(aside, path)
}

/** Nothing is written through a link or into a pipe that a program has put there. */
function openNew(path: string, mode: number): number {
  rmSync(path, { recursive: true, force: true })
  return openSync(path, 'wx', mode)
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

/** Undefined when it is no JSON. */
export function parseJson(text: string): unknown {
  try {
    return JSON.parse(text) as unknown
  } catch {
    return undefined
  }
}
