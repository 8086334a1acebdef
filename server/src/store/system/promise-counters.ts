import { type Command, command } from '../port.ts'
import { each, integer, type Row, text, type Work } from '../statement.ts'
import { addCounters } from './promise-counters.sql.ts'

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
    .map(([id, { duplicatesRefused, replaysServed, staleWritesFenced }]) => [
      id,
      nodeId,
      batchN,
      duplicatesRefused,
      replaysServed,
      staleWritesFenced,
    ])
  return command('add_counts', function* work(): Work<void> {
    yield* each(addCounters, rows)
  })
}

export interface StoredCounts extends PromiseCounts {
  nodeId: string
  batchN: number
}

export function toCounts(row: Row): StoredCounts {
  return {
    nodeId: text(row, 'node_id'),
    batchN: integer(row, 'batch_n'),
    duplicatesRefused: integer(row, 'duplicates_refused'),
    replaysServed: integer(row, 'replays_served'),
    staleWritesFenced: integer(row, 'stale_writes_fenced'),
  }
}
