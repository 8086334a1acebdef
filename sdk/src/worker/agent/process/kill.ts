import { realpathSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { sleep, type World } from '../../../world.ts'
import { parseJson, readNoteText, writeWhole } from '../output/files.ts'
import {
  bootId,
  type Cgroup,
  cgroupAt,
  identityOf,
  otherPids,
  pathsOf,
  signal,
  statusOf,
  variablesOf,
} from './processes.ts'

/** Marks the processes of a run, so that they are found even after setsid. */
const MARKER = 'ICHIDO_LEASE_ID'
/** Marks the supervisor, which may start the program after its agent has died. */
export const SUPERVISOR_MARKER = 'ICHIDO_SUPERVISED_LEASE_ID'

/** The processes of a run that are to be killed. */
export interface Prey {
  /** The process group of the program. */
  group: number | null
  leaseId: string
  cgroup: Cgroup | null
}

const ROUNDS_MAX = 200
const ROUND_MS = 20

/** Sends SIGKILL to every process of a run; false if some survive. */
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

/** Sends SIGKILL only to the supervisor of a run. */
export function killSupervisor(leaseId: string, world: World): Promise<boolean> {
  return untilNobody(world, () => {
    const found = carrying(leaseId, [SUPERVISOR_MARKER])
    for (const pid of found) signal(pid, 'SIGKILL')
    return found.length > 0
  })
}

/** Repeats until no process is found, because processes may fork meanwhile. */
async function untilNobody(world: World, strike: () => boolean): Promise<boolean> {
  for (let round = 0; round < ROUNDS_MAX; round++) {
    if (!strike()) return true
    await sleep(world, ROUND_MS)
  }
  return false
}

/** Sends SIGTERM once to each process: a program may treat the second SIGTERM as an order to abort. */
export function terminateRun({ group, leaseId }: Prey): void {
  const outside = markedBy(leaseId).filter((pid) => group === null || statusOf(pid)?.group !== group)
  if (group !== null) signalGroup(group, 'SIGTERM')
  for (const pid of outside) signal(pid, 'SIGTERM')
}

/** True while a process of the run exists. */
export function isAlive({ group, leaseId, cgroup }: Prey): boolean {
  if (group !== null && signal(-group, 0) && hasLiving(group)) return true
  return [...markedBy(leaseId), ...(cgroup?.members() ?? [])].length > 0
}

/** Returns whether a process got it. A zombie does not count, because it cannot be killed. */
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

export function isSupervised(leaseId: string): boolean {
  return carrying(leaseId, [SUPERVISOR_MARKER]).length > 0
}

function markedBy(leaseId: string): number[] {
  return carrying(leaseId, [MARKER, SUPERVISOR_MARKER])
}

/** Without /proc (macOS) only the process group is known. */
function carrying(leaseId: string, markers: string[]): number[] {
  const wanted = markers.map((name) => `${name}=${leaseId}`)
  const isMarked = (pid: string) => {
    const variables = variablesOf(pid)
    return wanted.some((variable) => variables.includes(variable))
  }
  return (otherPids() ?? []).filter(isMarked).map(Number)
}

/** Written by a supervisor before its program starts, so that the program can be killed after the supervisor's death. */
export interface ProgramNote {
  group: number
  /** The identity of the group leader. */
  leader: string
  /** The boot id of the machine; null if it is unknown. */
  boot: string | null
  /** The folder of the run's control group. */
  cgroup: string | null
}

/** Not synced: a power cut ends the program, too. */
export function noteProgram(file: string, group: number, cgroup: Cgroup | null): ProgramNote {
  const leader = identityOf(group) ?? ''
  const note: ProgramNote = { group, leader, boot: bootId(), cgroup: cgroup?.folder ?? null }
  writeWhole(file, JSON.stringify(note))
  return note
}

/** Null if no program was started, if the machine was restarted since, or if that is unknown. */
export function readNote(file: string): ProgramNote | null {
  const noted = parseJson(readNoteText(file) ?? '')
  return isNote(noted) && noted.boot !== null && noted.boot === bootId() ? noted : null
}

function isNote(noted: unknown): noted is ProgramNote {
  if (typeof noted !== 'object' || noted === null) return false
  const { group, leader, boot, cgroup } = noted as Partial<Record<keyof ProgramNote, unknown>>
  const isText = (value: unknown) => value === null || typeof value === 'string'
  // A signal to group 0 goes to the own group, and to group 1 to every process.
  return (
    Number.isSafeInteger(group) && Number(group) > 1 && typeof leader === 'string' && isText(boot) && isText(cgroup)
  )
}

/** Finds the processes of a run by the note in its folder. */
export function preyOf(note: ProgramNote | null, leaseId: string, noteFile: string): Prey {
  if (note === null) return { group: null, leaseId, cgroup: null }
  const group = isStillOf(note, dirname(noteFile)) ? note.group : null
  return { group, leaseId, cgroup: note.cgroup === null ? null : cgroupAt(note.cgroup) }
}

/**
 * Whether the group still belongs to the run. A group number is not reused while the group has a member. After the leader has
 * ended, the group may have been empty, and the number may belong to a stranger now. A member that is in the run's folder, or
 * has one of its files open, proves the group, because its members share a session. Without such a member the group is left
 * alone: to kill a stranger is worse than to miss a program that left all its files.
 */
function isStillOf({ group, leader }: ProgramNote, folder: string): boolean {
  const identity = identityOf(group)
  if (identity !== null) return identity === leader
  const own = join(realpathSync(folder), '/')
  return (otherPids() ?? []).some((pid) => {
    const status = statusOf(pid)
    return status?.group === group && status.session === group && pathsOf(pid).some((path) => path.startsWith(own))
  })
}
