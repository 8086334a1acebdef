import { mkdirSync, readdirSync, readFileSync, readlinkSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

/** Reads /proc. Without it (macOS) only process numbers are known. */

const PREFIX = 'ichido-'

interface ProcessStatus {
  group: number
  session: number
  /** True for a zombie. */
  ended: boolean
  /** When it started, in ticks since the boot. */
  begun: string
}

export function statusOf(pid: string | number): ProcessStatus | null {
  const stat = read(`/proc/${pid}/stat`)
  // The name in brackets may contain spaces and brackets; the fields follow the last bracket.
  const fields = stat.slice(stat.lastIndexOf(')') + 2).split(' ')
  const [state = 'X', , group, session] = fields
  const begun = fields[19] ?? ''
  return stat === '' ? null : { group: Number(group), session: Number(session), ended: 'ZX'.includes(state), begun }
}

/** A process number is reused; together with the start time it is unique until the next boot. */
export function identityOf(pid: number): string | null {
  const status = statusOf(pid)
  if (status !== null) return `${pid} ${status.begun}`
  return isThere(pid) ? `${pid} -` : null
}

export function bootId(): string | null {
  return read('/proc/sys/kernel/random/boot_id').trim() || null
}

export function variablesOf(pid: string | number): string[] {
  return read(`/proc/${pid}/environ`).split('\0')
}

/** The current folder and the open files of a process. */
export function pathsOf(pid: string | number): string[] {
  const open = attempt(() => readdirSync(`/proc/${pid}/fd`)) ?? []
  const links = ['cwd', ...open.map((fd) => `fd/${fd}`)]
  return links.flatMap((link) => attempt(() => readlinkSync(`/proc/${pid}/${link}`)) ?? [])
}

/** All processes but this one; null if /proc is missing. */
export function otherPids(): string[] | null {
  return attempt(() => readdirSync('/proc').filter((name) => /^\d+$/.test(name) && Number(name) !== process.pid))
}

/** Returns whether the process got the signal. */
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

/** Null on any error: the process may have ended, or belong to another user. */
function attempt<T>(ask: () => T): T | null {
  try {
    return ask()
  } catch {
    return null
  }
}

/** The control group of a run. All processes that the program starts stay in it, even with another environment or session. */
export interface Cgroup {
  folder: string
  /** Sends SIGKILL to all its processes at once. */
  kill(): void
  members(): number[]
  remove(): void
}

/** Null if this process may not create one: not Linux, cgroup v1, or no delegation to this container or user. */
export function makeCgroup(): Cgroup | null {
  try {
    // The name is unique, so a note of it never leads to another run.
    const folder = join(ownFolder(), nameOf(identityOf(process.pid) ?? ''))
    mkdirSync(folder)
    return cgroupAt(folder)
  } catch {
    return null
  }
}

/** An existing group, which may be gone. */
export function cgroupAt(folder: string): Cgroup {
  return {
    folder,
    // Kernels before 5.14 lack this file; the processes are also killed one by one.
    kill: () => attempt(() => writeFileSync(join(folder, 'cgroup.kill'), '1')),
    members: () =>
      (attempt(() => readFileSync(join(folder, 'cgroup.procs'), 'utf8')) ?? '').split('\n').filter(Boolean).map(Number),
    remove: () => attempt(() => rmdirSync(folder)),
  }
}

/**
 * Removes the empty groups of killed supervisors. It kills no process, because supervisors of other PID namespaces only seem
 * dead. The agent that finds a group noted in the folder of a run kills its processes.
 */
export function sweepCgroups(): void {
  attempt(() => {
    const own = ownFolder()
    for (const name of readdirSync(own).filter((name) => name.startsWith(PREFIX))) {
      const maker = identityOf(Number(name.slice(PREFIX.length).split('-')[0]))
      if (maker === null || name !== nameOf(maker)) attempt(() => rmdirSync(join(own, name)))
    }
  })
}

function nameOf(identity: string): string {
  return `${PREFIX}${identity.replace(' ', '-')}`
}

function ownFolder(): string {
  const mount = readFileSync('/proc/self/mountinfo', 'utf8')
    .split('\n')
    .find((line) => line.includes(' - cgroup2 '))
  const own = readFileSync('/proc/self/cgroup', 'utf8')
    .split('\n')
    .find((line) => line.startsWith('0::'))
  const mountPoint = mount?.split(' ')[4]
  if (mountPoint === undefined || own === undefined) throw new Error('There is no cgroup v2')
  return join(mountPoint, own.slice('0::'.length))
}
