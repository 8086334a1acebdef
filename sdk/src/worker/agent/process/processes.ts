import { readdirSync, readFileSync, readlinkSync } from 'node:fs'

/** What /proc tells of the machine's processes. Without it (macOS) there are their numbers only. */

export interface ProcessStatus {
  group: number
  session: number
  /** It is only still there to be collected. */
  ended: boolean
  /** When it began, in ticks since the machine started. */
  begun: string
}

export function statusOf(pid: string | number): ProcessStatus | null {
  const stat = read(`/proc/${pid}/stat`)
  // The name in brackets may hold spaces and brackets of its own; the fields follow the last bracket.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const [state = 'X', , group, session] = fields
  const begun = fields[19] ?? ''
  return stat === '' ? null : { group: Number(group), session: Number(session), ended: 'ZX'.includes(state), begun }
}

/** A process number comes again; together with when the process began it does not, until the machine starts anew. */
export function identityOf(pid: number): string | null {
  const status = statusOf(pid)
  if (status !== null) return `${pid} ${status.begun}`
  return isThere(pid) ? `${pid} -` : null
}

/** This start of the machine: what began counts from it. */
export function bootId(): string | null {
  return read('/proc/sys/kernel/random/boot_id').trim() || null
}

export function variablesOf(pid: string | number): string[] {
  return read(`/proc/${pid}/environ`).split('\0')
}

/** Its current folder, and what it has open. */
export function pathsOf(pid: string | number): string[] {
  const open = attempt(() => readdirSync(`/proc/${pid}/fd`)) ?? []
  const links = ['cwd', ...open.map((fd) => `fd/${fd}`)]
  return links.flatMap((link) => attempt(() => readlinkSync(`/proc/${pid}/${link}`)) ?? [])
}

/** All but this one; null when nobody tells. */
export function otherPids(): string[] | null {
  return attempt(() => readdirSync('/proc').filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid))
}

/** Whether there was anybody to get it. */
export function signal(pid: number, name: NodeJS.Signals | 0): boolean {
  return attempt(() => process.kill(pid, name)) ?? false
}

function isThere(pid: number): boolean {
  try {
    return process.kill(pid, 0)
  } catch (error) {
    return error instanceof Error && 'code' in error && error.code === 'EPERM'
  }
}

function read(path: string): string {
  return attempt(() => readFileSync(path, 'utf8')) ?? ''
}

/** Null when it cannot be: the process has ended, say, or belongs to another user. */
export function attempt<T>(ask: () => T): T | null {
  try {
    return ask()
  } catch {
    return null
  }
}
