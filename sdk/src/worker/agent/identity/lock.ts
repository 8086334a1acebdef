import { linkSync, mkdirSync, renameSync, rmSync, writeFileSync } from 'node:fs'
import { dirname } from 'node:path'
import { StateTaken } from '../errors.ts'
import { readIfThere } from '../output/files.ts'
import { identityOf } from '../process/processes.ts'

/** Allows one agent for each state folder: a second one would treat the first one's runs as those of a dead agent. */
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

/** Links a written file, so that the lock never exists without its owner's name. */
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
 * Takes over the lock of a dead agent. Only one of several agents may do it, because the second would replace the first. The
 * takeover therefore needs a lock itself, whose owner may be dead, too.
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
