import { mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'
import { attempt, identityOf } from './processes.ts'

/** A control group of one run: whatever its program starts stays in it, whatever it does to its environment or session. */
export interface Cgroup {
  folder: string
  /** SIGKILL to everything in it, at once. */
  kill(): void
  members(): number[]
  remove(): void
}

const PREFIX = 'ichido-'

/** Null where this process may not make one: no Linux, cgroup v1, a container or user that nothing was delegated to. */
export function makeCgroup(): Cgroup | null {
  try {
    // Of a name that never comes again: whoever notes it down kills nobody else by it later.
    const folder = join(ownFolder(), nameOf(identityOf(process.pid) ?? ''))
    mkdirSync(folder)
    return cgroupAt(folder)
  } catch {
    return null
  }
}

/** One that was made before, and may be gone by now. */
export function cgroupAt(folder: string): Cgroup {
  return {
    folder,
    // Kernels before 5.14 do not have this file; the group and the marked processes are killed one by one as well.
    kill: () => attempt(() => writeFileSync(join(folder, 'cgroup.kill'), '1')),
    members: () =>
      (attempt(() => readFileSync(join(folder, 'cgroup.procs'), 'utf8')) ?? '').split('\n').filter(Boolean).map(Number),
    remove: () => attempt(() => rmdirSync(folder)),
  }
}

/**
 * Removes what supervisors left behind that were killed, once it is empty. It kills nobody: supervisors of other PID
 * namespaces only seem dead. What still runs in one is killed by the agent that finds it noted in the folder of its run.
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

/** After the supervisor that makes it. */
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
