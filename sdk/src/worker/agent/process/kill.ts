import { sleep, type World } from '../../../world.ts'
import type { Cgroup } from './cgroup.ts'
import { otherPids, signal, statusOf, variablesOf } from './processes.ts'

/** The variable by which a run's processes are found again, even those that left the group by setsid. */
const MARKER = 'ICHIDO_LEASE_ID'
/** And the one of the supervisor, which may be about to begin the program when its agent is gone. */
export const SUPERVISOR_MARKER = 'ICHIDO_SUPERVISED_LEASE_ID'

export interface Prey {
  /** Process group of the program. */
  group: number | null
  leaseId: string
  cgroup: Cgroup | null
}

const ROUNDS_MAX = 200
const ROUND_MS = 20

/** SIGKILL to all that belongs to a run. */
export async function killRun({ group, leaseId, cgroup }: Prey, world: World): Promise<boolean> {
  const isOver = await untilNobody(world, () => {
    cgroup?.kill()
    const inGroup = group !== null && signalGroup(group, 'SIGKILL')
    const found = [...markedBy(leaseId), ...(cgroup?.members() ?? [])]
    for (const pid of found) signal(pid, 'SIGKILL')
    return inGroup || found.length > 0
  })
  if (isOver) cgroup?.remove()
  return isOver
}

/** SIGKILL to the supervisor of a run, and to nothing else of it. */
export function killSupervisor(leaseId: string, world: World): Promise<boolean> {
  return untilNobody(world, () => {
    const found = carrying(leaseId, [SUPERVISOR_MARKER])
    for (const pid of found) signal(pid, 'SIGKILL')
    return found.length > 0
  })
}

/** Again and again until nobody is met: what forks meanwhile is met next. */
async function untilNobody(world: World, strike: () => boolean): Promise<boolean> {
  for (let round = 0; round < ROUNDS_MAX; round++) {
    if (!strike()) return true
    await sleep(world, ROUND_MS)
  }
  return false
}

/** Asks politely, and everybody once: who is asked twice may take it for an order to drop everything. */
export function terminateRun({ group, leaseId }: Prey): void {
  const outside = markedBy(leaseId).filter((pid) => group === null || statusOf(pid)?.group !== group)
  if (group !== null) signalGroup(group, 'SIGTERM')
  for (const pid of outside) signal(pid, 'SIGTERM')
}

/** Whether anything of a run is still there. */
export function isAlive({ group, leaseId, cgroup }: Prey): boolean {
  if (group !== null && signal(-group, 0) && hasLiving(group)) return true
  return [...markedBy(leaseId), ...(cgroup?.members() ?? [])].length > 0
}

/** Whether there was anybody; one that has ended and was not collected yet does not count, as nobody can kill it. */
function signalGroup(group: number, name: NodeJS.Signals): boolean {
  return signal(-group, name) && hasLiving(group)
}

function hasLiving(group: number): boolean {
  const pids = otherPids()
  if (pids === null) return true
  return pids.some((pid) => {
    const status = statusOf(pid)
    return status?.group === group && !status.ended
  })
}

/** Whether a supervisor is there to see to the run. */
export function isSupervised(leaseId: string): boolean {
  return carrying(leaseId, [SUPERVISOR_MARKER]).length > 0
}

function markedBy(leaseId: string): number[] {
  return carrying(leaseId, [MARKER, SUPERVISOR_MARKER])
}

/** Without /proc (macOS) there is the group only. */
function carrying(leaseId: string, markers: string[]): number[] {
  const wanted = markers.map((name) => `${name}=${leaseId}`)
  const isMarked = (pid: string) => {
    const variables = variablesOf(pid)
    return wanted.some((variable) => variables.includes(variable))
  }
  return (otherPids() ?? []).filter(isMarked).map(Number)
}
