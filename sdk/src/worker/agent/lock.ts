import { readFileSync, rmSync } from 'node:fs'
import { readIfThere, writeDurably } from './files.ts'

/** One agent for a state folder: a second one would take the first one's runs for those of a dead one. */
export function lockState(path: string): () => void {
  const held = readIfThere(path)?.trim()
  const [pid] = held?.split(' ') ?? []
  if (held !== undefined && Number(pid) !== process.pid && held === identityOf(Number(pid))) {
    throw new StateTaken(`Another agent (process ${pid}) is at work with this state folder`)
  }
  writeDurably(path, identityOf(process.pid) ?? '')
  return () => rmSync(path, { force: true })
}

export class StateTaken extends Error {
  override readonly name = 'StateTaken'
}

/** A process number comes again; together with when the process began it does not. */
function identityOf(pid: number): string | null {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    const begun = stat.slice(stat.lastIndexOf(')') + 2).split(' ')[19]
    return `${pid} ${begun}`
  } catch {
    return isAlive(pid) ? `${pid} -` : null
  }
}

function isAlive(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'EPERM'
  }
}
