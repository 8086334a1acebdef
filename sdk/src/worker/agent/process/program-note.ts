import { realpathSync } from 'node:fs'
import { dirname, join } from 'node:path'
import { parseJson, writeWhole } from '../output/files.ts'
import { readNoteText } from '../output/written-files.ts'
import { type Cgroup, cgroupAt } from './cgroup.ts'
import type { Prey } from './kill.ts'
import { bootId, identityOf, otherPids, pathsOf, statusOf } from './processes.ts'

/** What a supervisor notes before its program begins, for whoever has to kill that once the supervisor is dead itself. */
export interface ProgramNote {
  group: number
  /** Identity of the process that leads the group. */
  leader: string
  /** The start of the machine that this is of; null where nobody tells. */
  boot: string | null
  /** Folder of the run's control group. */
  cgroup: string | null
}

/** Not for after a power cut, which ends the program as well. */
export function noteProgram(file: string, group: number, cgroup: Cgroup | null): ProgramNote {
  const leader = identityOf(group) ?? ''
  const note: ProgramNote = { group, leader, boot: bootId(), cgroup: cgroup?.folder ?? null }
  writeWhole(file, JSON.stringify(note))
  return note
}

/** Null when no program had begun, or it ended with an earlier start of the machine, or nobody can tell whether it did. */
export function readNote(file: string): ProgramNote | null {
  const noted = parseJson(readNoteText(file) ?? '')
  return isNote(noted) && noted.boot !== null && noted.boot === bootId() ? noted : null
}

function isNote(noted: unknown): noted is ProgramNote {
  if (typeof noted !== 'object' || noted === null) return false
  const { group, leader, boot, cgroup } = noted as Partial<Record<keyof ProgramNote, unknown>>
  const isText = (value: unknown) => value === null || typeof value === 'string'
  // Signals to the groups 0 and 1 go to our own, and to everybody.
  return (
    Number.isSafeInteger(group) && Number(group) > 1 && typeof leader === 'string' && isText(boot) && isText(cgroup)
  )
}

/** What of a run is to be killed, by what was noted of it in its folder. */
export function preyOf(note: ProgramNote | null, leaseId: string, noteFile: string): Prey {
  if (note === null) return { group: null, leaseId, cgroup: null }
  const group = isStillOf(note, dirname(noteFile)) ? note.group : null
  return { group, leaseId, cgroup: note.cgroup === null ? null : cgroupAt(note.cgroup) }
}

/**
 * Whether the group is still the run's. Its number is not given away while it has a member. Once its leader is gone, though,
 * it may have had none for a while, and be a stranger's now, whose leader is gone, too. One member that is in the run's
 * folder, or has a file of it open, speaks for all, as they are of one session. Without such a one they are left alone: a
 * program that moved away from all it was given is less to be feared than the death of a stranger.
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
