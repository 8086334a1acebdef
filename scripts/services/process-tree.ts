import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { setTimeout as sleep } from 'node:timers/promises'

const GONE_WITHIN_MS = 5000

/** Sends SIGKILL to a process and its children. The process is stopped first, so that it cannot start new ones. */
export async function killTree(pid: number): Promise<void> {
  process.kill(pid, 'SIGSTOP')
  const children = childrenOf(pid)
  for (const target of [pid, ...children]) signal(target, 'SIGKILL')
  const deadlineMs = Date.now() + GONE_WITHIN_MS
  while (children.some(alive) && Date.now() < deadlineMs) await sleep(5)
}

function childrenOf(pid: number): number[] {
  const pairs = existsSync('/proc/self/stat') ? fromProc() : fromPs()
  return pairs.filter(([, parent]) => parent === pid).map(([child]) => child)
}

type Pair = [pid: number, parent: number]

function fromProc(): Pair[] {
  const pids = readdirSync('/proc').filter((name) => /^\d+$/.test(name))
  return pids.map((pid): Pair => [Number(pid), Number(statFields(pid)[1])])
}

/** State, parent and so on; empty if there is no such process. */
function statFields(pid: string): string[] {
  try {
    // The name in brackets may contain spaces and brackets. The fields follow the last bracket.
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  } catch {
    return []
  }
}

function fromPs(): Pair[] {
  const lines = execFileSync('ps', ['-A', '-o', 'pid=,ppid='], { encoding: 'utf8' }).trim().split('\n')
  return lines.map((line): Pair => {
    const [pid = 0, parent = 0] = line.trim().split(/\s+/).map(Number)
    return [pid, parent]
  })
}

/** A zombie counts as gone: the init of some containers is slow to collect it. */
export function alive(pid: number): boolean {
  return existsSync('/proc/self/stat') ? !'ZX'.includes(statFields(String(pid))[0] ?? 'X') : signal(pid, 0)
}

function signal(pid: number, name: NodeJS.Signals | 0): boolean {
  try {
    return process.kill(pid, name)
  } catch {
    return false
  }
}
