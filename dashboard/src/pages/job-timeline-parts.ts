import type { RunShape } from '@ichido/sdk/protocol'

/** What a run does, in this order. */
export const PART_NAMES = ['due', 'retry', 'waited', 'leased', 'running', 'confirming'] as const
export type PartName = (typeof PART_NAMES)[number]

export interface Part {
  name: PartName
  fromMs: number
  toMs: number
}

/** The parts of a run that took time; the last one also if it took none. */
export function partsOf(run: RunShape, nowMs: number): Part[] {
  const madeMs = Date.parse(run.created_at)
  const endMs = run.finished_at === null ? Math.max(nowMs, madeMs) : Date.parse(run.finished_at)
  const leasedMs = timeOf(run.assigned_at)
  // A run that waits for uploads is due far in the future.
  const dueMs = Math.min(Math.max(Date.parse(run.run_at), madeMs), leasedMs ?? endMs)
  const silentMs = run.continuation_state === 'CONFIRMING' ? timeOf(run.lease_expires_at) : null
  const marks: [PartName, number | null][] = [
    [run.retry_count === 0 ? 'due' : 'retry', madeMs],
    ['waited', dueMs],
    ['leased', leasedMs],
    ['running', timeOf(run.started_at)],
    ['confirming', silentMs === null ? null : Math.min(endMs, silentMs)],
  ]
  const known = marks.flatMap(([name, fromMs]) => (fromMs === null ? [] : [{ name, fromMs }]))
  const parts = known.map(({ name, fromMs }, i) => ({
    name,
    fromMs,
    toMs: Math.max(fromMs, known[i + 1]?.fromMs ?? endMs),
  }))
  const long = parts.filter(({ fromMs, toMs }) => toMs > fromMs)
  return long.length === 0 ? parts.slice(-1) : long
}

const timeOf = (iso: string | null): number | null => (iso === null ? null : Date.parse(iso))
