import { ALL_QUEUES } from '../../server/src/core/limits/series.ts'
import { command, type Store } from '../../server/src/store/port.ts'
import { queryText } from '../../server/src/store/statement.ts'
import { type Filling, fill } from '../fill.ts'
import { jobRows, LETTERS, OTHER_ROWS, otherRows } from './rows.ts'

const MINUTE_MS = 60_000
const WEEK_MINUTES = 7 * 24 * 60
const QUEUES = [ALL_QUEUES, ...Array.from({ length: 10 }, (_, i) => `queue-${i}`)]
/** Rows of this many minutes, for so many minutes back, as the leader leaves them. */
const BLOCKS = [
  { span: 1, back: 75 },
  { span: 15, back: 25 * 60 },
  { span: 120, back: WEEK_MINUTES },
]
/** The buckets of the times to wait and to run. */
const BUCKETS = 20

/** Fills a store with jobs, dead letters and all else that pages of the dashboard show. Returns what the jobs' ids follow from. */
export async function fillDashboard(store: Store, url: string, count: number): Promise<Filling> {
  const filling = { count: count + LETTERS, nowMs: Date.now() }
  await fill(store, url, filling, jobRows(filling.count))
  await fill(store, url, { count: OTHER_ROWS, nowMs: filling.nowMs }, otherRows())
  await store.write(series(Math.floor(filling.nowMs / MINUTE_MS)))
  return filling
}

const series = (now: number) =>
  command('fill_series', function* work() {
    for (const { span, back } of BLOCKS) {
      for (let at = now - (now % span) - back; at < now; at += span) {
        for (const queue of QUEUES) yield* queryText(INSERT, queue, at, span, span * 40, figures(span))
      }
    }
  })

const INSERT = `INSERT INTO ichido.queue_series (queue, at, span, counted_by, batch_n, activity, figures)
  VALUES ($1, $2, $3, '', 0, $4, $5)`

function figures(span: number): string {
  const buckets = Array.from({ length: BUCKETS }, (_, i) => [`wait_${i}`, span] as const)
  const times = Array.from({ length: BUCKETS }, (_, i) => [`run_${i + 10}`, span] as const)
  const counts = { submitted: 40, started: 40, succeeded: 38, failed: 2, retried: 1, dead_lettered: 1, key_hits: 3 }
  const gauges = {
    ready: 120,
    delayed: 20,
    running: 8,
    oldest_waiting_ms: 4_000,
    dead_letters: 300,
    workers_online: 200,
  }
  const summed = Object.entries(counts).map(([name, count]) => [name, count * span] as const)
  return JSON.stringify({ ...Object.fromEntries([...summed, ...buckets, ...times]), ...gauges, samples: span })
}
