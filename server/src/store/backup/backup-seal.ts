import { createHash } from 'node:crypto'
import { appendFileSync, closeSync, openSync, readSync, statSync } from 'node:fs'

/** The last line of a backup: how many bytes are before it, and their SHA-256. SQLite does not read it. */
const SEAL = /^\nichido-backup ([0-9a-f]{16}) ([0-9a-f]{64})\n$/
const SEAL_BYTES = 97
const READ_BYTES = 1024 * 1024

export function seal(file: string): void {
  const { size } = statSync(file)
  appendFileSync(file, `\nichido-backup ${size.toString(16).padStart(16, '0')} ${sha256(file, size)}\n`)
}

/** The bytes that a seal is for, or why it does not fit; null where the file has no seal. */
export function checkSeal(file: string): { bytes: number } | { problem: string } | null {
  const bytes = statSync(file).size - SEAL_BYTES
  const found = bytes < 0 ? null : SEAL.exec(tail(file, bytes))
  if (found === null) return null
  const [, length = '', sum] = found
  if (Number.parseInt(length, 16) !== bytes) {
    return { problem: `it has ${bytes} bytes, ${Number.parseInt(length, 16)} were written` }
  }
  return sha256(file, bytes) === sum ? { bytes } : { problem: 'its checksum does not match' }
}

function tail(file: string, from: number): string {
  const handle = openSync(file, 'r')
  try {
    const found = Buffer.alloc(SEAL_BYTES)
    readSync(handle, found, 0, SEAL_BYTES, from)
    return found.toString('latin1')
  } finally {
    closeSync(handle)
  }
}

/** A part at a time: a backup may be larger than the memory. */
function sha256(file: string, bytes: number): string {
  const hash = createHash('sha256')
  const part = Buffer.alloc(READ_BYTES)
  const handle = openSync(file, 'r')
  try {
    for (let at = 0; at < bytes; ) {
      const count = readSync(handle, part, 0, Math.min(READ_BYTES, bytes - at), at)
      if (count === 0) break
      hash.update(part.subarray(0, count))
      at += count
    }
  } finally {
    closeSync(handle)
  }
  return hash.digest('hex')
}
