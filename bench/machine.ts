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
