/**
 * The series of statistics. A row has the figures of one queue in one block of minutes. Rows are kept by the minute, then by
 * the quarter of an hour, then by two hours. Blocks begin at multiples of their length, counted from 1970.
 */

/** All queues together. No queue has an empty name. */
export const ALL_QUEUES = ''
/** The queues beyond the maximum, together. No queue can have this name. */
export const OTHER_QUEUES = '*'
/** At most this many queues have rows of their own in a block. */
export const SERIES_QUEUES_MAX = 200

/** The queue itself, or `OTHER_QUEUES` if too many queues have a place. */
export function placeIn(places: ReadonlyMap<string, unknown>, queue: string): string {
  if (queue === ALL_QUEUES || places.has(queue)) return queue
  const others = [ALL_QUEUES, OTHER_QUEUES].filter((name) => places.has(name)).length
  return places.size - others < SERIES_QUEUES_MAX ? queue : OTHER_QUEUES
}

/** Counts of a block, summed over nodes and blocks. A name may be one that only a newer node knows. */
export type Figures = Record<string, number>

export type Count =
  | 'submitted'
  | 'started'
  | 'succeeded'
  | 'failed'
  | 'timed_out'
  | 'canceled'
  | 'retried'
  | 'dead_lettered'
  | 'key_hits'
  | 'cost_micros'

/** Sampled by the leader once a minute. */
export type Gauge = 'ready' | 'delayed' | 'running' | 'oldest_waiting_ms' | 'dead_letters' | 'workers_online'

/** How many minutes of the block were sampled. */
export const SAMPLES = 'samples'

/** A block keeps the worst sample, so a peak of a minute is still visible after a week. */
const WORST: Readonly<Record<Gauge, (a: number, b: number) => number>> = {
  ready: Math.max,
  delayed: Math.max,
  running: Math.max,
  oldest_waiting_ms: Math.max,
  dead_letters: Math.max,
  workers_online: Math.min,
}

const isGauge = (name: string): name is Gauge => Object.hasOwn(WORST, name)

/** Adds the figures to the sum. */
export function addFigures(sum: Figures, more: Readonly<Figures>): void {
  for (const [name, value] of Object.entries(more)) {
    const before = sum[name]
    if (before === undefined) sum[name] = value
    else sum[name] = isGauge(name) ? WORST[name](before, value) : before + value
  }
}

/** Ranks queues by the moves of their runs. */
export function activityOf(figures: Readonly<Figures>): number {
  const names = ['submitted', 'started', 'succeeded', 'failed', 'timed_out', 'canceled'] satisfies Count[]
  return names.reduce((sum, name) => sum + (figures[name] ?? 0), 0)
}

export type Timing = 'wait' | 'run'

/** Each bucket is √2 times as wide as the one before. The last one begins at 12 days. */
const BUCKETS_PER_DOUBLING = 2
const LAST_BUCKET = 61

export function bucketOf(ms: number): number {
  if (!(ms >= 1)) return 0
  return Math.min(LAST_BUCKET, 1 + Math.floor(BUCKETS_PER_DOUBLING * Math.log2(ms)))
}

const lowerMs = (bucket: number) => (bucket === 0 ? 0 : 2 ** ((bucket - 1) / BUCKETS_PER_DOUBLING))

export const timingName = (timing: Timing, ms: number): string => `${timing}_${bucketOf(ms)}`

/** The value at this rank from 0 to 1, within its bucket; null without values. */
export function percentileMs(figures: Readonly<Figures>, timing: Timing, rank: number): number | null {
  const buckets = Array.from({ length: LAST_BUCKET + 1 }, (_, i) => figures[`${timing}_${i}`] ?? 0)
  const count = buckets.reduce((sum, n) => sum + n, 0)
  if (count === 0) return null
  let left = Math.max(1, Math.ceil(rank * count))
  for (const [bucket, n] of buckets.entries()) {
    if (left > n) {
      left -= n
      continue
    }
    const [from, to] = [lowerMs(bucket), lowerMs(bucket + 1)]
    return from + ((to - from) * (left - 0.5)) / n
  }
  return null
}

export const SERIES_RANGES = ['15m', '1h', '24h', '7d'] as const
export type SeriesRange = (typeof SERIES_RANGES)[number]

export const RANGES: Readonly<Record<SeriesRange, { minutes: number; step: number }>> = {
  '15m': { minutes: 15, step: 1 },
  '1h': { minutes: 60, step: 1 },
  '24h': { minutes: 24 * 60, step: 15 },
  '7d': { minutes: 7 * 24 * 60, step: 120 },
}

const HOUR = 60

/**
 * Rows of `from` minutes become part of rows of `to` minutes when their block has been over for `after` minutes. No range reads
 * a block that is longer than its step.
 */
export const ROLL_UPS = [
  { from: 1, to: 15, after: HOUR + 15 },
  { from: 15, to: 120, after: 25 * HOUR },
] as const

/** A node may write its counts of a minute for this long. Later its minute may be rolled up, and would count twice. */
export const WRITABLE_MINUTES = HOUR
export const SERIES_KEPT_MINUTES = 8 * 24 * HOUR

/** The first minutes of the steps of a range. The last step has not ended yet. */
export function stepsOf(range: SeriesRange, nowMinute: number): number[] {
  const { minutes, step } = RANGES[range]
  const last = blockOf(nowMinute, step)
  return Array.from({ length: minutes / step }, (_, i) => last - minutes + (i + 1) * step)
}

export const blockOf = (minute: number, length: number): number => minute - (minute % length)
