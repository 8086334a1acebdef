import type { World } from '@ichido/sdk/world'
import { MINUTE_MS, type MinuteCount } from '../../core/limits/minute-counts.ts'
import type { Store } from '../../store/port.ts'
import type { SubmitOutcome } from '../../store/submission/submission.ts'
import { readClock } from '../../store/system/leadership.ts'
import { addMinuteCounts, type MinuteBatch } from '../../store/system/minute-counts.ts'
import { addCounts, type PromiseCounts, type StoredCounts } from '../../store/system/promise-counters.ts'
import { sharedRead, within } from '../wait.ts'
import type { Meter } from './meter.ts'
import type { Settings } from './settings.ts'

const FAILED: ReadonlySet<string> = new Set(['FAILED', 'TIMED_OUT'])

/**
 * Counts the repeats, conflicts and late writes of each job. The counts are kept in memory and written in batches, so that
 * many repeats do not cause many writes.
 */
export interface PromiseCounters {
  /** Unknown jobs are not counted. */
  count(jobId: string, what: keyof PromiseCounts, times?: number): void
  /** Counts a submission that made no job. */
  notCreated(outcome: SubmitOutcome): void
  /** Counts a refused write of a worker. */
  refused(jobId: string, reason: string): void
  /** The stored counts of a job, plus those that this node has not written yet. */
  total(stored: readonly StoredCounts[], jobId: string): PromiseCounts
  /** Writes a batch. A call during a write shares that write. The answer is 0 if there is more. */
  flush(): Promise<number | null>
  close(): Promise<void>
}

interface PromiseCountersOptions {
  world: World
  store: Store
  settings: Settings
  meter: Pick<Meter, 'evidenceLost'>
}

/** The maximum of jobs with unwritten counts. At half of it the oldest are written at once. */
const WAITING_MAX = 20_000
/** The timeout of the last write of a node that stops. */
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
  /** The batch does not change until it is written, so that a retry writes the same batch. */
  let writing = new Map<string, PromiseCounts>()
  let batchN = 0

  async function write(): Promise<number | null> {
    if (writing.size === 0) take()
    if (writing.size === 0) return null
    await store.write(addCounts({ nodeId, batchN, counts: writing }))
    writing = new Map()
    return waiting.size > 0 ? 0 : null
  }

  /** Takes the oldest counts. */
  function take(): void {
    const max = settings.get('evidence_batch_max')
    for (const [id, counts] of waiting) {
      if (writing.size === max) break
      writing.set(id, counts)
      waiting.delete(id)
    }
    batchN++
  }

  const flush = sharedRead(write)

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
    // The loop meets the same error, and logs it.
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
    refused(jobId, reason) {
      if (reason === 'OUTCOME_ALREADY_RECORDED') count(jobId, 'duplicatesRefused')
      else if (STALE.has(reason)) count(jobId, 'staleWritesFenced')
    },
    total(stored, jobId) {
      // A batch may be committed although this node has not got the answer yet.
      const heard = stored.some((row) => row.nodeId === nodeId && row.batchN === batchN)
      const unwritten = [waiting.get(jobId) ?? [], (!heard && writing.get(jobId)) || []].flat()
      return [...stored, ...unwritten].reduce<PromiseCounts>(plus, nothing())
    },
    async close() {
      const all = async () => {
        while ((await flush()) !== null);
      }
      await within(
        world,
        CLOSE_WITHIN_MS,
        all().catch(() => {}),
        null,
      )
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

/** Counts for alerts. The counts are kept in memory and written once a second, so that no job waits for them. */
export interface MinuteCounts {
  add(name: MinuteCount, times: number): void
  /** Writes the counts. A call during a write shares that write. */
  flush(): Promise<void>
  /** Writes the rest, or gives up if the store does not answer. */
  close(): Promise<void>
}

export function createMinuteCounts({ world, store }: { world: World; store: Store }): MinuteCounts {
  const nodeId = world.uuid()
  let waiting = new Map<MinuteCount, number>()
  /** The batch does not change until it is written, so that a retry writes the same batch of the same minute. */
  let writing: MinuteBatch | null = null
  let batchN = 0

  async function write(): Promise<void> {
    if (writing === null) {
      if (waiting.size === 0) return
      const minute = Math.floor((await store.read(readClock())) / MINUTE_MS)
      writing = { minute, nodeId, batchN: ++batchN, counts: waiting }
      waiting = new Map()
    }
    await store.write(addMinuteCounts(writing))
    writing = null
  }

  const flush = sharedRead(write)

  return {
    add: (name, times) => void waiting.set(name, (waiting.get(name) ?? 0) + times),
    flush,
    async close() {
      const all = async () => {
        while (writing !== null || waiting.size > 0) await flush()
      }
      await within(
        world,
        CLOSE_WITHIN_MS,
        all().catch(() => {}),
        null,
      )
    },
  }
}

/** A meter that also counts by the minute. Its methods are called after the commit. */
export function countingByMinute(meter: Meter, counts: Pick<MinuteCounts, 'add'>): Meter {
  return {
    ...meter,
    submitted(outcome, keyed, code, queue) {
      meter.submitted(outcome, keyed, code, queue)
      if (!keyed) return
      counts.add('keyed_submits', 1)
      if (outcome === 'replayed' || code === 'IDEMPOTENCY_KEY_REUSED') counts.add('duplicate_submits', 1)
    },
    started(waitedMs, queue, kind) {
      meter.started(waitedMs, queue, kind)
      counts.add('runs_started', 1)
      counts.add('start_delay_ms', waitedMs)
    },
    ended(state, retries, queue, kind) {
      meter.ended(state, retries, queue, kind)
      // A canceled run has neither failed nor succeeded.
      if (retries === 0 || state === 'CANCELED') return
      counts.add('retries_ended', 1)
      if (FAILED.has(state)) counts.add('retries_failed', 1)
    },
  }
}
