import { sleep, type World } from '@ichido/sdk/world'
import { MINUTE_MS, type MinuteCount } from '../../core/limits/minute-counts.ts'
import type { Store } from '../../store/port.ts'
import { readClock } from '../../store/system/leadership.ts'
import { addMinuteCounts, type MinuteBatch } from '../../store/system/minute-counts.ts'
import type { Meter } from './meter.ts'

/** Counts what alerts are about. In memory, and written once a second: nothing on the way of a job waits for it. */
export interface MinuteCounts {
  add(name: MinuteCount, times: number): void
  /** Writes what was counted; a second caller waits for the same write. */
  flush(): Promise<void>
  /** Writes the rest, unless the store does not answer. */
  close(): Promise<void>
}

/** A store that does not answer must not hold up a node that stops. */
const CLOSE_WITHIN_MS = 1_000

export function createMinuteCounts({ world, store }: { world: World; store: Store }): MinuteCounts {
  const nodeId = world.uuid()
  let waiting = new Map<MinuteCount, number>()
  /** Kept as it is until it is known to be written: tried again, it is the same batch, of the same minute. */
  let writing: MinuteBatch | null = null
  let batchN = 0
  let flushing: Promise<void> | null = null

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

  function flush(): Promise<void> {
    flushing ??= write().finally(() => {
      flushing = null
    })
    return flushing
  }

  return {
    add: (name, times) => void waiting.set(name, (waiting.get(name) ?? 0) + times),
    flush,
    async close() {
      const all = async () => {
        while (writing !== null || waiting.size > 0) await flush()
      }
      const done = new AbortController()
      await Promise.race([all().catch(() => {}), sleep(world, CLOSE_WITHIN_MS, done.signal)])
      done.abort()
    },
  }
}

const FAILED: ReadonlySet<string> = new Set(['FAILED', 'TIMED_OUT'])

/** A meter that also counts by the minute. Each of these is called after the commit. */
export function countingByMinute(meter: Meter, counts: Pick<MinuteCounts, 'add'>): Meter {
  return {
    ...meter,
    submitted(outcome, keyed, code) {
      meter.submitted(outcome, keyed, code)
      if (!keyed) return
      counts.add('keyed_submits', 1)
      if (outcome === 'replayed' || code === 'IDEMPOTENCY_KEY_REUSED') counts.add('duplicate_submits', 1)
    },
    started(waitedMs) {
      meter.started(waitedMs)
      counts.add('runs_started', 1)
      counts.add('start_delay_ms', waitedMs)
    },
    ended(state, retries = 0) {
      meter.ended(state, retries)
      // A canceled run has neither failed nor succeeded.
      if (retries === 0 || state === 'CANCELED') return
      counts.add('retries_ended', 1)
      if (FAILED.has(state)) counts.add('retries_failed', 1)
    },
  }
}
