import type { QueueRateShape, SeriesPointShape, SeriesShape } from '@ichido/sdk/protocol'
import type { World } from '@ichido/sdk/world'
import { MINUTE_MS } from '../../core/limits/minute-counts.ts'
import { MICROS } from '../../core/limits/quota.ts'
import {
  ALL_QUEUES,
  addFigures,
  blockOf,
  type Count,
  type Figures,
  type Gauge,
  percentileMs,
  placeIn,
  RANGES,
  SAMPLES,
  type SeriesRange,
  stepsOf,
  type Timing,
  timingName,
} from '../../core/limits/series.ts'
import type { Store } from '../../store/port.ts'
import { readClock } from '../../store/system/leadership.ts'
import {
  findRecentFigures,
  findSeries,
  findSeriesQueues,
  putSeriesCounts,
  type SeriesBatch,
} from '../../store/system/series.ts'
import { iso } from '../answers.ts'
import { sharedRead, within } from '../wait.ts'
import type { Meter } from './meter.ts'

/**
 * Counts what this node has committed, for each queue and minute. The counts are kept in memory and written once a second, so
 * that no job waits for them. A node that is killed loses the counts of its last second.
 */
export interface SeriesCounts {
  add(queue: string, name: Count, times?: number): void
  time(queue: string, timing: Timing, ms: number): void
  /** Writes the counts. A call during a write shares that write. */
  flush(): Promise<void>
  /** Writes the rest, or gives up if the store does not answer. */
  close(): Promise<void>
}

/** The timeout of the last write of a node that stops. */
const CLOSE_WITHIN_MS = 1_000

export function createSeriesCounts({ world, store }: { world: World; store: Store }): SeriesCounts {
  let waiting = new Map<string, Figures>()
  /** All that was counted in the minute of the last write. */
  let minute = { number: -1, countedBy: '', queues: new Map<string, Figures>() }
  /** The batch does not change until it is written, so that a retry writes the same batch. */
  let writing: SeriesBatch | null = null
  let batchN = 0

  function increase(queue: string, name: string, times: number): void {
    const place = placeIn(waiting, queue)
    let figures = waiting.get(place)
    if (figures === undefined) {
      figures = {}
      waiting.set(place, figures)
    }
    figures[name] = (figures[name] ?? 0) + times
  }

  function count(queue: string, name: string, times: number): void {
    increase(queue, name, times)
    increase(ALL_QUEUES, name, times)
  }

  /** Adds what waits to the minute. */
  function take(number: number): SeriesBatch {
    if (minute.number !== number) minute = { number, countedBy: world.uuid(), queues: new Map() }
    const queues = new Map<string, Figures>()
    for (const [queue, figures] of waiting) {
      const place = placeIn(minute.queues, queue)
      const sum = minute.queues.get(place) ?? {}
      addFigures(sum, figures)
      minute.queues.set(place, sum)
      queues.set(place, { ...sum })
    }
    waiting = new Map()
    return { minute: number, countedBy: minute.countedBy, batchN: ++batchN, queues }
  }

  async function write(): Promise<void> {
    if (writing === null) {
      if (waiting.size === 0) return
      writing = take(Math.floor((await store.read(readClock())) / MINUTE_MS))
    }
    await store.write(putSeriesCounts(writing))
    writing = null
  }

  const flush = sharedRead(write)

  return {
    add: (queue, name, times = 1) => count(queue, name, times),
    time: (queue, timing, ms) => count(queue, timingName(timing, ms), 1),
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

const ENDS: Readonly<Record<string, Count>> = {
  SUCCEEDED: 'succeeded',
  FAILED: 'failed',
  TIMED_OUT: 'timed_out',
  CANCELED: 'canceled',
}

/** A meter that also counts for the series. Its methods are called after the commit. */
export function countingBySeries(meter: Meter, counts: Pick<SeriesCounts, 'add' | 'time'>): Meter {
  return {
    ...meter,
    submitted(outcome, keyed, code, queue) {
      meter.submitted(outcome, keyed, code, queue)
      if (outcome === 'created') counts.add(queue, 'submitted')
      else if (outcome === 'replayed') counts.add(queue, 'key_hits')
    },
    made(queue) {
      meter.made(queue)
      counts.add(queue, 'submitted')
    },
    started(waitedMs, queue, kind) {
      meter.started(waitedMs, queue, kind)
      counts.add(queue, 'started')
      counts.time(queue, 'wait', waitedMs)
    },
    ended(state, retries, queue, kind) {
      meter.ended(state, retries, queue, kind)
      const name = ENDS[state]
      if (name !== undefined) counts.add(queue, name)
    },
    reported(state, tookMs, queue, kind, costMicros) {
      meter.reported(state, tookMs, queue, kind, costMicros)
      counts.time(queue, 'run', tookMs)
      if (costMicros > 0) counts.add(queue, 'cost_micros', costMicros)
    },
    retried(by, queue) {
      meter.retried(by, queue)
      counts.add(queue, 'retried')
    },
    deadLetterMade(queue) {
      meter.deadLetterMade(queue)
      counts.add(queue, 'dead_lettered')
    },
  }
}

export interface SeriesService {
  /** @param queue null: all queues together. */
  read(range: SeriesRange, queue: string | null): Promise<Omit<SeriesShape, 'queues'>>
  /** The queues with figures in the range, the most active first. */
  queues(range: SeriesRange): Promise<string[]>
  /** Of each queue that moved in the last minutes. */
  rates(): Promise<QueueRateShape[]>
}

/** A rate is over this many minutes and the current one. */
const RATE_MINUTES = 4

export function createSeriesService({ store }: { store: Store }): SeriesService {
  const nowMinute = async () => Math.floor((await store.read(readClock())) / MINUTE_MS)
  return {
    async read(range, queue) {
      const minute = await nowMinute()
      const { step } = RANGES[range]
      const steps = stepsOf(range, minute)
      const from = steps[0] ?? minute
      const { all, own } = await store.read(findSeries(queue ?? ALL_QUEUES, from))
      const [allByStep, ownByStep] = [sumBySteps(all, step), sumBySteps(own, step)]
      return {
        range,
        step_seconds: step * 60,
        from: iso(from * MINUTE_MS),
        to: iso((from + steps.length * step) * MINUTE_MS),
        queue,
        points: steps.map((at) => ({
          at: iso(at * MINUTE_MS),
          complete: at + step <= minute,
          ...countsOf(ownByStep.get(at) ?? {}),
          ...gaugesOf(ownByStep.get(at) ?? {}, allByStep.get(at) ?? {}),
        })),
      }
    },
    async queues(range) {
      const [from = 0] = stepsOf(range, await nowMinute())
      return store.read(findSeriesQueues(from))
    },
    async rates() {
      const { overMs, queues } = await store.read(findRecentFigures(RATE_MINUTES))
      const perMinute = (figures: Figures, names: readonly Count[]) => {
        const count = names.reduce((sum, name) => sum + (figures[name] ?? 0), 0)
        return Math.round((count * MINUTE_MS * 10) / overMs) / 10
      }
      return [...queues].map(([queue, figures]) => ({
        queue,
        submitted_per_minute: perMinute(figures, ['submitted']),
        ended_per_minute: perMinute(figures, Object.values(ENDS)),
      }))
    },
  }
}

function sumBySteps(
  rows: readonly { readonly at: number; readonly figures: Readonly<Figures> }[],
  step: number,
): Map<number, Figures> {
  const sums = new Map<number, Figures>()
  for (const { at, figures } of rows) {
    const block = blockOf(at, step)
    const sum = sums.get(block)
    if (sum === undefined) sums.set(block, { ...figures })
    else addFigures(sum, figures)
  }
  return sums
}

type Counted = Omit<SeriesPointShape, 'at' | 'complete' | keyof ReturnType<typeof gaugesOf>>

function countsOf(figures: Readonly<Figures>): Counted {
  const count = (name: Count) => figures[name] ?? 0
  const times = (timing: Timing) => ({
    p50: rounded(percentileMs(figures, timing, 0.5)),
    p99: rounded(percentileMs(figures, timing, 0.99)),
  })
  return {
    submitted: count('submitted'),
    started: count('started'),
    succeeded: count('succeeded'),
    failed: count('failed'),
    timed_out: count('timed_out'),
    canceled: count('canceled'),
    retried: count('retried'),
    dead_lettered: count('dead_lettered'),
    key_hits: count('key_hits'),
    cost: count('cost_micros') / MICROS,
    wait_ms: times('wait'),
    run_ms: times('run'),
  }
}

const rounded = (ms: number | null) => (ms === null ? null : Math.round(ms * 10) / 10)

/** A queue without a row in a sample was empty. The workers are those of all queues. */
function gaugesOf(own: Readonly<Figures>, all: Readonly<Figures>) {
  const samples = all[SAMPLES] ?? 0
  const gauge = (name: Gauge, from = own) => (samples === 0 ? null : (from[name] ?? 0))
  const oldestMs = gauge('oldest_waiting_ms')
  return {
    ready: gauge('ready'),
    delayed: gauge('delayed'),
    running: gauge('running'),
    oldest_waiting_seconds: oldestMs === null ? null : oldestMs / 1000,
    dead_letters: gauge('dead_letters'),
    workers_online: gauge('workers_online', all),
    sampled: samples > 0,
    sampled_minutes: samples,
  }
}
