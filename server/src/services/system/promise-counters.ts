import { sleep, type World } from '@ichido/sdk/world'
import type { Store } from '../../store/port.ts'
import type { SubmitOutcome } from '../../store/submission/submission.ts'
import { addCounts, type PromiseCounts, type StoredCounts } from '../../store/system/promise-counters.ts'
import type { Meter } from './meter.ts'
import type { Settings } from './settings.ts'

/**
 * Counts for each job what the promises were kept against: repeats, conflicts and late writes. In memory, and written a batch
 * at a time: a storm of repeats must not become a storm of writes.
 */
export interface PromiseCounters {
  /** What is counted by a run is counted for its job; ids that nothing is stored under are not counted. */
  count(jobOrRunId: string, what: keyof PromiseCounts, times?: number): void
  /** Of a submission that made no job. */
  notCreated(outcome: SubmitOutcome): void
  /** A worker's write that was refused. */
  refused(jobOrRunId: string, reason: string): void
  /** What is stored of a job, and what this node has still to write of it and its runs. */
  total(stored: readonly StoredCounts[], ids: readonly string[]): PromiseCounts
  /** Writes a batch; whoever calls while it does waits for the same. Answers 0 when there is more. */
  flush(): Promise<number | null>
  close(): Promise<void>
}

export interface PromiseCountersOptions {
  world: World
  store: Store
  settings: Settings
  meter: Pick<Meter, 'evidenceLost'>
}

/** Of jobs and runs that wait to be written. At half of it the oldest are written without waiting for the loop. */
const WAITING_MAX = 20_000
/** A store that does not answer must not hold up a node that stops. */
const CLOSE_WITHIN_MS = 1_000

const STALE: ReadonlySet<string> = new Set([
  'LEASE_LOST',
  'NOT_ASSIGNED',
  'VERSION_MISMATCH',
  'EPOCH_MISMATCH',
  'ALREADY_ENDED',
])

export function createPromiseCounters({ world, store, settings, meter }: PromiseCountersOptions): PromiseCounters {
  const nodeId = world.uuid()
  const waiting = new Map<string, PromiseCounts>()
  /** Kept as it is until it is known to be written: tried again, it is the same batch. */
  let writing = new Map<string, PromiseCounts>()
  let batchN = 0
  let flushing: Promise<number | null> | null = null

  async function write(): Promise<number | null> {
    if (writing.size === 0) take()
    if (writing.size === 0) return null
    await store.write(addCounts({ nodeId, batchN, counts: writing }))
    writing = new Map()
    return waiting.size > 0 ? 0 : null
  }

  /** The oldest of what waits. */
  function take(): void {
    const max = settings.get('evidence_batch_max')
    for (const [id, counts] of waiting) {
      if (writing.size === max) break
      writing.set(id, counts)
      waiting.delete(id)
    }
    batchN++
  }

  function flush(): Promise<number | null> {
    flushing ??= write().finally(() => {
      flushing = null
    })
    return flushing
  }

  function count(id: string, what: keyof PromiseCounts, times = 1): void {
    const counts = waiting.get(id)
    if (counts !== undefined) {
      counts[what] += times
      return
    }
    if (waiting.size === WAITING_MAX) {
      meter.evidenceLost(1)
      return
    }
    waiting.set(id, { ...nothing(), [what]: times })
    // The loop meets the same trouble, and tells it.
    if (waiting.size === WAITING_MAX / 2) flush().catch(() => {})
  }

  return {
    count,
    flush,
    notCreated(outcome) {
      if (outcome.kind === 'replayed') count(outcome.jobId, 'replaysServed')
      if (outcome.kind !== 'refused') return
      const { refusal } = outcome
      if (refusal.code === 'IDEMPOTENCY_KEY_REUSED') count(refusal.jobId, 'duplicatesRefused')
    },
    refused(id, reason) {
      if (reason === 'OUTCOME_ALREADY_RECORDED') count(id, 'duplicatesRefused')
      else if (STALE.has(reason)) count(id, 'staleWritesFenced')
    },
    total(stored, ids) {
      // A batch may be committed before this node has heard of it.
      const heard = stored.some((row) => row.nodeId === nodeId && row.batchN === batchN)
      const unwritten = ids.flatMap((id) => [waiting.get(id) ?? [], (!heard && writing.get(id)) || []].flat())
      return [...stored, ...unwritten].reduce<PromiseCounts>(plus, nothing())
    },
    async close() {
      const all = async () => {
        while ((await flush()) !== null);
      }
      const done = new AbortController()
      await Promise.race([all().catch(() => {}), sleep(world, CLOSE_WITHIN_MS, done.signal)])
      done.abort()
      const left = waiting.size + writing.size
      if (left > 0) meter.evidenceLost(left)
    },
  }
}

const nothing = (): PromiseCounts => ({ duplicatesRefused: 0, replaysServed: 0, staleWritesFenced: 0 })

function plus(a: PromiseCounts, b: PromiseCounts): PromiseCounts {
  return {
    duplicatesRefused: a.duplicatesRefused + b.duplicatesRefused,
    replaysServed: a.replaysServed + b.replaysServed,
    staleWritesFenced: a.staleWritesFenced + b.staleWritesFenced,
  }
}
