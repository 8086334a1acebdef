import type { World } from '@ichido/sdk/world'
import type { Bus } from '../bus/port.ts'
import type { Meter } from '../services/meter.ts'
import { readClock } from '../store/commands/leadership.ts'
import { type Ended, expireBatch, reviewRuns, type Waiting } from '../store/commands/reap-runs.ts'
import type { Store } from '../store/port.ts'
import type { ClockWatch } from './clock-watch.ts'
import type { Leading } from './elect.ts'

const BATCH_MAX = 200
/** Runs whose end is awaited at the same time; those beyond it have their turn later. */
const WAITING_MAX = 10_000
/** Leases that lapse one after the other are looked at together. */
const PAUSE_MIN_MS = 100

export interface ReapOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  clock: Pick<ClockWatch, 'observe' | 'evenMs'>
  leading: Leading
}

/**
 * Hands on the work of workers that are gone, for one term. A run is not ended before this leader itself, by a clock of its
 * own that only goes forward, has waited the whole continuation time: by then the worker has stopped. What a leader before
 * has waited, or a clock has jumped, does not count.
 */
export function createReap(options: ReapOptions): () => Promise<number | null> {
  const { world, store, bus, clock, leading } = options
  /** Since when each was waited for, by what was seen of it. */
  let since = new Map<string, number>()

  /** How long is still to be waited for each. */
  function wait(waiting: readonly Waiting[]): Map<Waiting, number> {
    // After they were read: the wait begins no earlier than it was written.
    const nowMs = world.monotonic()
    const left = new Map<Waiting, number>()
    const before = since
    since = new Map()
    for (const one of waiting) {
      const sinceMs = Math.min(
        ...marksOf(one).map((mark) => {
          const markedMs = before.get(mark) ?? nowMs
          since.set(mark, markedMs)
          return markedMs
        }),
      )
      left.set(one, sinceMs + one.continuationMs - nowMs)
    }
    return left
  }

  function tell(ended: readonly Ended[], orphaned: readonly string[] = []): void {
    for (const { state, dead } of ended) {
      options.meter.ended(state)
      if (dead) options.meter.deadLetterMade()
    }
    const queues = new Set([...orphaned, ...ended.flatMap(({ queue }) => queue ?? [])])
    bus.wake([
      ...[...queues].map((queue) => `queue:${queue}` as const),
      ...ended.map(({ jobId }) => `job:${jobId}` as const),
    ])
  }

  return async () => {
    const askedMs = world.monotonic()
    const nowMs = await store.read(readClock())
    clock.observe(nowMs, askedMs)
    const sizes = { batchMax: BATCH_MAX, waitingMax: WAITING_MAX }
    const review = await store.write(reviewRuns(leading, { nowMs, evenMs: clock.evenMs, ...sizes }))
    tell(review.ended, review.queues)

    const left = wait(review.waiting)
    const due = review.waiting.filter((one) => (left.get(one) ?? 0) <= 0)
    const batch = due.slice(0, BATCH_MAX).map((one) => ({ ...one, nextRunId: world.uuid(), random: world.random() }))
    if (batch.length > 0 && leading.trusted()) tell(await store.write(expireBatch(leading, batch)))
    if (review.full || due.length > BATCH_MAX) return 0
    // What is due and was passed over, because somebody has it locked or the clock is not believed, has time.
    const soonest = Math.min(...[...left.values(), review.nextLapseMs ?? 0].filter((ms) => ms > 0))
    return Number.isFinite(soonest) ? Math.max(PAUSE_MIN_MS, soonest + 1) : null
  }
}

/** A heartbeat and a lapse later the deadline is another one, and so is the wait. */
function marksOf({ runId, version, deadlineAtMs, cancelRequestedAtMs }: Waiting): string[] {
  const marks = [
    ['confirming', deadlineAtMs],
    ['canceled', cancelRequestedAtMs],
  ] as const
  return marks.flatMap(([why, at]) => (at === null ? [] : [`${runId}/${version}/${why}/${at}`]))
}
