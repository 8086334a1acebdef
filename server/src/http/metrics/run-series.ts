import type { World } from '@ichido/sdk/world'
import { isName } from '../../contract/common.ts'
import type { Meter } from '../../services/system/meter.ts'

/**
 * The metrics of runs by queue and kind. A pair of them has up to 60 series: 14 for each histogram and state. So 100 pairs and
 * 11 buckets give at most 6,000 series a node, which Prometheus takes easily. The client library would build a key of three
 * labels for each count, which takes longer than everything here.
 */

/** At most this many pairs of queue and kind have series of their own. */
export const PAIRS_MAX = 100
/** The queue and the kind of the runs of all other pairs. */
const OTHER = 'other'
/** A pair without counts for this long makes room for a new pair. While there is room, it stays: `increase` misses the first count of a series. */
export const IDLE_MS = 3_600_000
const REVIEW_EVERY_MS = 60_000

/** From 10 ms to a day. Each is at most six times the one before, except the last. */
const SECONDS = [0.01, 0.05, 0.25, 1, 5, 30, 120, 600, 3600, 6 * 3600, 86_400]

interface Times {
  /** How many were at most as long as each bound, but longer than the bound before. The last count is of the longest. */
  counts: number[]
  sum: number
}

interface Pair {
  labels: string
  ended: Map<string, number>
  waits: Times
  /** By the state in which the runs ended. */
  took: Map<string, Times>
  /** Whether it has counted since the last review. */
  active: boolean
  activeMs: number
}

export interface RunSeries extends Pick<Meter, 'started' | 'ended' | 'reported'> {
  /** In the text format of Prometheus. */
  render(): string
}

export function createRunSeries({ monotonic }: Pick<World, 'monotonic'>): RunSeries {
  const other = newPair(OTHER, OTHER)
  const queues = new Map([[OTHER, new Map([[OTHER, other]])]])
  let pairs = 0
  let reviewFromMs = Number.NEGATIVE_INFINITY

  function pairOf(queue: string, kind: string): Pair {
    const known = queues.get(queue)?.get(kind)
    if (known !== undefined) {
      known.active = true
      return known
    }
    if ((pairs >= PAIRS_MAX && !removesIdle()) || !isName(queue) || !isName(kind)) return other
    const pair = newPair(queue, kind)
    const kinds = queues.get(queue) ?? new Map<string, Pair>()
    queues.set(queue, kinds.set(kind, pair))
    pairs++
    return pair
  }

  /** Whether there is room now. */
  function removesIdle(): boolean {
    const nowMs = monotonic()
    if (nowMs < reviewFromMs) return false
    reviewFromMs = nowMs + REVIEW_EVERY_MS
    for (const [queue, kinds] of queues) {
      for (const [kind, pair] of kinds) {
        if (pair.active) pair.activeMs = nowMs
        else if (pair !== other && nowMs - pair.activeMs >= IDLE_MS) {
          kinds.delete(kind)
          pairs--
        }
        pair.active = false
      }
      if (kinds.size === 0) queues.delete(queue)
    }
    return pairs < PAIRS_MAX
  }

  return {
    started: (waitedMs, queue, kind) => add(pairOf(queue, kind).waits, waitedMs / 1000),
    ended(state, _retries, queue, kind) {
      const { ended } = pairOf(queue, kind)
      ended.set(state, (ended.get(state) ?? 0) + 1)
    },
    reported(state, tookMs, queue, kind) {
      const { took } = pairOf(queue, kind)
      let times = took.get(state)
      if (times === undefined) {
        times = newTimes()
        took.set(state, times)
      }
      add(times, tookMs / 1000)
    },
    render() {
      const all = [...queues.values()].flatMap((kinds) => [...kinds.values()])
      const lines = head('ichido_runs_ended_total', 'counter', 'Runs by the state they ended in')
      for (const { labels, ended } of all) {
        for (const [state, count] of ended) lines.push(`ichido_runs_ended_total{state="${state}",${labels}} ${count}`)
      }
      lines.push(...head('ichido_run_wait_seconds', 'histogram', 'From when a run was due until it started'))
      for (const { labels, waits } of all) lines.push(...histogram('ichido_run_wait_seconds', labels, waits))
      const help = 'From the start of a run to its end, by the state it ended in'
      lines.push(...head('ichido_run_seconds', 'histogram', help))
      for (const { labels, took } of all) {
        for (const [state, times] of took) {
          lines.push(...histogram('ichido_run_seconds', `state="${state}",${labels}`, times))
        }
      }
      return `${lines.join('\n')}\n`
    },
  }
}

const newTimes = (): Times => ({ counts: Array(SECONDS.length + 1).fill(0), sum: 0 })

/** Names need no escapes. */
const newPair = (queue: string, kind: string): Pair => ({
  labels: `queue="${queue}",kind="${kind}"`,
  ended: new Map(),
  waits: newTimes(),
  took: new Map(),
  active: true,
  activeMs: 0,
})

function add(times: Times, seconds: number): void {
  let bucket = 0
  while (seconds > (SECONDS[bucket] ?? Number.POSITIVE_INFINITY)) bucket++
  times.counts[bucket] = (times.counts[bucket] ?? 0) + 1
  times.sum += seconds
}

const head = (name: string, type: string, help: string) => [
  '',
  `# HELP ${name} ${help}, by queue and kind: at most ${PAIRS_MAX} pairs, and the others as "${OTHER}"`,
  `# TYPE ${name} ${type}`,
]

function histogram(name: string, labels: string, { counts, sum }: Times): string[] {
  let count = 0
  const buckets = counts.map((n, i) => {
    count += n
    return `${name}_bucket{le="${SECONDS[i] ?? '+Inf'}",${labels}} ${count}`
  })
  return count === 0 ? [] : [...buckets, `${name}_sum{${labels}} ${sum}`, `${name}_count{${labels}} ${count}`]
}
