import { readFileSync } from 'node:fs'

/** How many files this process may have open, connections included; null where Linux does not say. */
export function readOpenFilesMax(): number | null {
  try {
    const [, soft] = /^Max open files +(\d+)/m.exec(readFileSync('/proc/self/limits', 'utf8')) ?? []
    return soft === undefined ? null : Number(soft)
  } catch {
    return null
  }
}
