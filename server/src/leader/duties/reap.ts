import type { World } from '@ichido/sdk/world'
import type { Bus } from '../../bus/port.ts'
import type { Meter } from '../../services/system/meter.ts'
import type { Settings } from '../../services/system/settings.ts'
import type { Store } from '../../store/port.ts'
import { type Ended, expireBatch, type PendingExpiry, reviewRuns } from '../../store/runs/reap-runs.ts'
import { readClock } from '../../store/system/leadership.ts'
import type { ClockWatch } from '../election/clock-watch.ts'
import type { Leading } from '../election/elect.ts'

/** Runs whose end is awaited at the same time; those beyond it have their turn later. */
const WAITING_MAX = 10_000
/** Leases that lapse one after the other are looked at together. */
const PAUSE_MIN_MS = 100

export interface ReapOptions {
  world: World
  store: Store
  bus: Bus
  meter: Meter
  settings: Settings
  clock: Pick<ClockWatch, 'observe' | 'evenMs'>
  leading: Leading
}

/**
 * Hands on the work of workers that are gone, for one term. A run is not ended before this leader itself, by a clock of its
 * own that only goes forward, has waited the whole continuation time: by then the worker has stopped. What a leader before
 * has waited, or a clock has jumped, does not count.
 */
export function createReap(options: ReapOptions): () => Promise<number | null> {
  const { world, store, bus, clock, leading, settings } = options
  /** Since when each was waited for, by what was seen of it. */
  let since = new Map<string, number>()

  /** How long is still to be waited for each mark of each run. */
  function wait(waiting: readonly PendingExpiry[]): Waited[] {
    // After they were read: the wait begins no earlier than it was written.
    const nowMs = world.monotonic()
    const before = since
    since = new Map()
    return waiting.map((one) => {
      const leftMs = (why: string, at: number | null) => {
        if (at === null) return null
        // A heartbeat and a lapse later the deadline is another one, and so is the wait.
        const mark = `${one.runId}/${one.version}/${why}/${at}`
        const markedMs = before.get(mark) ?? nowMs
        since.set(mark, markedMs)
        return markedMs + one.continuationMs - nowMs
      }
      const deadlineLeftMs = leftMs('confirming', one.deadlineAtMs)
      return { one, deadlineLeftMs, cancelLeftMs: leftMs('canceled', one.cancelRequestedAtMs) }
    })
  }

  function tell(ended: readonly Ended[], orphaned: readonly string[] = []): void {
    for (const { state, dead, retries, retried } of ended) {
      options.meter.ended(state, retries)
      if (retried) options.meter.retried('policy')
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
    const batchMax = settings.get('reap_batch_max')
    const reassignAfterMs = Math.round(settings.get('reassign_after_seconds') * 1_000)
    const bounds = { batchMax, waitingMax: WAITING_MAX, reassignAfterMs }
    const review = await store.write(reviewRuns(leading, { nowMs, evenMs: clock.evenMs, ...bounds }))
    tell(review.ended, review.queues)

    const waited = wait(review.waiting)
    const due = waited.flatMap(dueOf)
    const batch = due.slice(0, batchMax).map((one) => ({ ...one, nextRunId: world.uuid(), random: world.random() }))
    if (batch.length > 0 && leading.trusted()) tell(await store.write(expireBatch(leading, batch)))
    if (review.full || due.length > batchMax) return 0
    // What is due and was passed over, because somebody has it locked or the clock is not believed, has time.
    const marks = waited.flatMap(({ deadlineLeftMs, cancelLeftMs }) => [deadlineLeftMs, cancelLeftMs])
    const soonest = Math.min(...[...marks, review.nextLapseMs].flatMap((ms) => (ms !== null && ms > 0 ? [ms] : [])))
    return Number.isFinite(soonest) ? Math.max(PAUSE_MIN_MS, soonest + 1) : null
  }
}

interface Waited {
  one: PendingExpiry
  /** Of its worker's word, and of its cancellation; null: not waited for. */
  deadlineLeftMs: number | null
  cancelLeftMs: number | null
}

/** With the marks alone whose own wait is over: a heartbeat that comes now is not overruled by a cancel that is young. */
function dueOf({ one, deadlineLeftMs, cancelLeftMs }: Waited): PendingExpiry[] {
  const isOver = (ms: number | null) => ms !== null && ms <= 0
  if (!isOver(deadlineLeftMs) && !isOver(cancelLeftMs)) return []
  return [
    {
      ...one,
      deadlineAtMs: isOver(deadlineLeftMs) ? one.deadlineAtMs : null,
      cancelRequestedAtMs: isOver(cancelLeftMs) ? one.cancelRequestedAtMs : null,
    },
  ]
}
