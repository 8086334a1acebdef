import type { Deps } from '../../services/deps.ts'
import { type Ended, expireBatch, type PendingExpiry, reviewRuns } from '../../store/runs/reap-runs.ts'
import { readClock } from '../../store/system/leadership.ts'
import type { ClockWatch } from '../election/clock-watch.ts'
import type { Leading } from '../election/elect.ts'

/** At most this many runs are waited for at a time. */
const WAITING_MAX = 10_000
/** Leases that expire shortly after each other are handled together. */
const PAUSE_MIN_MS = 100

interface ReapOptions extends Pick<Deps, 'world' | 'store' | 'bus' | 'meter' | 'settings'> {
  clock: Pick<ClockWatch, 'observe' | 'evenMs'>
  leading: Leading
}

/**
 * Takes runs from lost workers, for one term. A run ends only after this leader itself has waited the whole
 * continuation time on its monotonic clock: by then the worker has stopped. The wait of an earlier leader and jumps of
 * a clock do not count.
 */
export function createReap(options: ReapOptions): () => Promise<number | null> {
  const { world, store, bus, clock, leading, settings } = options
  /** When the wait for each mark began. */
  let since = new Map<string, number>()

  /** The time that is left to wait for each mark of each run. */
  function wait(waiting: readonly PendingExpiry[]): Waited[] {
    // The runs were read before, so the wait begins no earlier than the mark.
    const nowMs = world.monotonic()
    const before = since
    since = new Map()
    return waiting.map((one) => {
      const leftMs = (why: string, at: number | null) => {
        if (at === null) return null
        // After a heartbeat and another expiry the deadline differs, and a new wait begins.
        const mark = `${one.jobId}/${one.version}/${why}/${at}`
        const markedMs = before.get(mark) ?? nowMs
        since.set(mark, markedMs)
        return markedMs + one.continuationMs - nowMs
      }
      const deadlineLeftMs = leftMs('confirming', one.deadlineAtMs)
      return { one, deadlineLeftMs, cancelLeftMs: leftMs('canceled', one.cancelRequestedAtMs) }
    })
  }

  function tell(ended: readonly Ended[], orphaned: readonly string[] = []): void {
    for (const { state, dead, retries, retried, endedIn, kind } of ended) {
      options.meter.ended(state, retries, endedIn, kind)
      if (retried) options.meter.retried('policy', endedIn)
      if (dead) options.meter.deadLetterMade(endedIn)
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
    // A due run that was skipped, because it is locked or the clock jumped, waits for the next turn.
    const marks = waited.flatMap(({ deadlineLeftMs, cancelLeftMs }) => [deadlineLeftMs, cancelLeftMs])
    const soonest = Math.min(...[...marks, review.nextLapseMs].flatMap((ms) => (ms !== null && ms > 0 ? [ms] : [])))
    return Number.isFinite(soonest) ? Math.max(PAUSE_MIN_MS, soonest + 1) : null
  }
}

interface Waited {
  one: PendingExpiry
  /** The time left to wait for the worker, and for the cancellation; null: no wait. */
  deadlineLeftMs: number | null
  cancelLeftMs: number | null
}

/**
 * Keeps only the marks whose own wait is over, so that a recent cancel request does not overrule a heartbeat that
 * arrives now.
 */
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
