import { existsSync, mkdirSync, readdirSync, readFileSync, rmdirSync, writeFileSync } from 'node:fs'
import { join } from 'node:path'

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
    const folder = join(ownFolder(), `${PREFIX}${process.pid}`)
    mkdirSync(folder)
    return {
      folder,
      // Kernels before 5.14 do not have this file.
      kill: () => attempt(() => writeFileSync(join(folder, 'cgroup.kill'), '1')),
      members: () => readFileSync(join(folder, 'cgroup.procs'), 'utf8').split('\n').filter(Boolean).map(Number),
      remove: () => attempt(() => rmdirSync(folder)),
    }
  } catch {
    return null
  }
}

/** Removes what supervisors left behind that were killed. */
export function sweepCgroups(): void {
  attempt(() => {
    const own = ownFolder()
    const pids = readdirSync(own).flatMap((name) => (name.startsWith(PREFIX) ? [name.slice(PREFIX.length)] : []))
    for (const pid of pids) if (!existsSync(`/proc/${pid}`)) attempt(() => rmdirSync(join(own, `${PREFIX}${pid}`)))
  })
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

function attempt(act: () => void): void {
  try {
    act()
  } catch {
    // The group and the marked processes are killed one by one as well; an empty folder harms nobody.
  }
}
