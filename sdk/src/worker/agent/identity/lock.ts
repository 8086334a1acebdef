import { linkSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { readIfThere } from '../output/files.ts'
import { identityOf } from '../process/processes.ts'

/** One agent for a state folder: a second one would take the first one's runs for those of a dead one. */
export function lockState(path: string): () => void {
  mkdirSync(dirname(path), { recursive: true, mode: 0o700 })
  const own = `${path}.${process.pid}`
  writeFileSync(own, identityOf(process.pid) ?? '', { mode: 0o600 })
  try {
    while (!(isFirst(own, path) || hasReplaced(own, path)));
  } finally {
    rmSync(own, { force: true })
  }
  return () => rmSync(path, { force: true })
}

/** A link, and not a new file that is written then: it is never there without saying whose it is. */
function isFirst(own: string, path: string): boolean {
  try {
    linkSync(own, path)
    return true
  } catch (error) {
    if (error instanceof Error && 'code' in error && error.code === 'EEXIST') return false
    throw error
  }
}

/**
 * Takes the place of one that is dead. Of several who see that it is dead only one may: the second would take the place
 * of the first. So that needs a lock as well, which may be a dead one's itself.
 */
function hasReplaced(own: string, path: string): boolean {
  const held = readIfThere(path)
  if (held === null) return false
  refuseLiving(held, dirname(path))
  const unlock = lockState(`${path}.takeover`)
  try {
    if (readIfThere(path) !== held) return false
    renameSync(own, path)
    return true
  } finally {
    unlock()
  }
}

function refuseLiving(held: string, folder: string): void {
  const [pid] = held.split(' ')
  if (Number(pid) === process.pid || held.trim() !== identityOf(Number(pid))) return
  throw new StateTaken(
    `Another agent (process ${pid}) uses the state folder ${folder}; use --name OTHER for a second worker, or --concurrency N for more runs at a time`,
  )
}

export class StateTaken extends Error {
  override readonly name = 'StateTaken'
}
