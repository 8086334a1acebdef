import { execFileSync } from 'node:child_process'
import { existsSync, readdirSync, readFileSync } from 'node:fs'
import { cpus, totalmem } from 'node:os'
import { setTimeout as sleep } from 'node:timers/promises'

const SAMPLE_MS = 500

/** The CPU share of other programs, from 0 to 1, measured while the benchmark itself is idle. */
export async function busyByOthers(): Promise<number> {
  const before = usage()
  await sleep(SAMPLE_MS)
  const after = usage()
  return (after.busy - before.busy) / Math.max(1, after.total - before.total)
}

function usage(): { busy: number; total: number } {
  const sum = { busy: 0, total: 0 }
  for (const { times } of cpus()) {
    const total = times.user + times.nice + times.sys + times.irq + times.idle
    sum.total += total
    sum.busy += total - times.idle
  }
  return sum
}

export function machineLine(): string {
  const found = cpus()
  const memory = `${Math.round(totalmem() / 2 ** 30)} GB`
  return `${found.length} × ${found[0]?.model.trim() ?? 'unknown processor'}, ${memory}, Node ${process.versions.node}, ${process.platform}`
}

const PAGE_BYTES = 4_096

/** The resident memory of a process, in bytes. Linux tells it without starting another process. */
export function memoryOf(pid: number): number {
  const file = `/proc/${pid}/statm`
  if (existsSync(file)) return Number(readFileSync(file, 'utf8').split(' ')[1]) * PAGE_BYTES
  return Number(execFileSync('ps', ['-o', 'rss=', '-p', String(pid)], { encoding: 'utf8' })) * 1024
}

const TICK_MS = 10
const PARENT = 1
const OWN_TIMES = [11, 12]
const TIMES = [...OWN_TIMES, 13, 14]

/** The CPU time of a process, of its children, and of the children that have ended, in ms. Only Linux tells it. */
export function cpuMsOf(pid: number): number {
  const children = readdirSync('/proc').filter((name) => /^\d+$/.test(name) && statOf(name)?.[PARENT] === pid)
  const ticks = (name: string, fields: readonly number[]) =>
    fields.reduce((sum, field) => sum + (statOf(name)?.[field] ?? 0), 0)
  const all = children.reduce((sum, child) => sum + ticks(child, OWN_TIMES), ticks(String(pid), TIMES))
  return all * TICK_MS
}

/** The numbers after the name of the process, which may contain anything; undefined if it has ended. */
function statOf(pid: string): number[] | undefined {
  try {
    const stat = readFileSync(`/proc/${pid}/stat`, 'utf8')
    return stat
      .slice(stat.lastIndexOf(')') + 2)
      .split(' ')
      .map(Number)
  } catch {
    return undefined
  }
}

/** The parent of a process. */
export const parentOf = (pid: number): number => statOf(String(pid))?.[PARENT] ?? 0
