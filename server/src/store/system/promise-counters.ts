import { type Command, command } from '../port.ts'
import { each, query, type Work } from '../statement.ts'
import { addCounters, readCounters } from './promise-counters.sql.ts'

/** What a promise was kept against: of a job, since it was submitted. */
export interface PromiseCounts {
  /** The same key, outcome or event number with something else in it, or an event that was stored before. */
  duplicatesRefused: number
  /** A stored answer that was given again. */
  replaysServed: number
  /** Writes of who does not hold the lease, or has an old version or epoch. */
  staleWritesFenced: number
}

export interface CounterBatch {
  nodeId: string
  /** Higher than that of the batch before, and the same when it is tried again. */
  batchN: number
  /** By job, or by one of its runs. */
  counts: ReadonlyMap<string, PromiseCounts>
}

export function addCounts({ nodeId, batchN, counts }: CounterBatch): Command<void> {
  const rows = [...counts]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([id, { duplicatesRefused, replaysServed, staleWritesFenced }]) => ({
      id,
      node_id: nodeId,
      batch_n: batchN,
      duplicates_refused: duplicatesRefused,
      replays_served: replaysServed,
      stale_writes_fenced: staleWritesFenced,
    }))
  return command('add_counts', function* work(): Work<void> {
    yield* each(addCounters, rows)
  })
}

export interface StoredCounts extends PromiseCounts {
  nodeId: string
  batchN: number
}

/** The counts of each node. */
export function* readCounts(jobId: string): Work<StoredCounts[]> {
  return (yield* query(readCounters, { job_id: jobId })).map((row) => ({
    nodeId: row.node_id,
    batchN: row.batch_n,
    duplicatesRefused: row.duplicates_refused,
    replaysServed: row.replays_served,
    staleWritesFenced: row.stale_writes_fenced,
  }))
}
