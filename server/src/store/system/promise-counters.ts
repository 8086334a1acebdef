import { type Command, command } from '../port.ts'
import { each, query, statement, type Work } from '../statement.ts'

const COUNTS = ['duplicates_refused', 'replays_served', 'stale_writes_fenced'] as const
const COLUMNS = `job_id, node_id, batch_n, ${COUNTS.join(', ')}`
const ADDED = `DO UPDATE SET batch_n = excluded.batch_n,
  ${COUNTS.map((count) => `${count} = o.${count} + excluded.${count}`).join(', ')}`

/**
 * A job that is gone gets no counts. The others are locked, so that none is removed
 * meanwhile. A retried batch adds nothing twice after an uncertain commit.
 */
const addCounters = statement('add_counters', {
  params: {
    job_id: 'text',
    node_id: 'text',
    batch_n: 'integer',
    duplicates_refused: 'integer',
    replays_served: 'integer',
    stale_writes_fenced: 'integer',
  },
  row: {},
  postgres: `WITH t AS MATERIALIZED (
      SELECT * FROM unnest($job_id::uuid[], $node_id::uuid[], $batch_n::bigint[], $duplicates_refused::bigint[],
          $replays_served::bigint[], $stale_writes_fenced::bigint[])
        AS t(job_id, node_id, batch_n, duplicates, replays, stale)),
    j AS MATERIALIZED (
      SELECT id FROM ichido.jobs WHERE id IN (SELECT job_id FROM t) ORDER BY id FOR KEY SHARE)
    INSERT INTO ichido.once_counters AS o (${COLUMNS})
    SELECT j.id, t.node_id, t.batch_n, sum(t.duplicates), sum(t.replays), sum(t.stale) FROM j JOIN t ON t.job_id = j.id
    GROUP BY j.id, t.node_id, t.batch_n ORDER BY j.id
    ON CONFLICT (job_id, node_id) ${ADDED} WHERE o.batch_n < excluded.batch_n`,
  sqlite: `INSERT INTO ichido.once_counters AS o (${COLUMNS})
    SELECT j.id, $node_id, $batch_n, $duplicates_refused, $replays_served, $stale_writes_fenced FROM ichido.jobs j
    WHERE j.id = $job_id
    ON CONFLICT (job_id, node_id) ${ADDED}`,
})

/** There is a row for each node that counted something of the job. */
const readCounters = statement('read_counters', {
  params: { job_id: 'text' },
  row: {
    node_id: 'text',
    batch_n: 'integer',
    duplicates_refused: 'integer',
    replays_served: 'integer',
    stale_writes_fenced: 'integer',
  },
  sql: `SELECT ${COLUMNS} FROM ichido.once_counters WHERE job_id = $job_id`,
})

/** How often the promises to a job were tested since it was submitted. */
export interface PromiseCounts {
  /** The same key, outcome or event number with other content, or a repeated event. */
  duplicatesRefused: number
  /** Stored answers that were returned again. */
  replaysServed: number
  /** Writes without the lease, or with an old version or epoch. */
  staleWritesFenced: number
}

interface CounterBatch {
  nodeId: string
  /** Higher than in the batch before, and the same for a retry. */
  batchN: number
  /** Keyed by job. */
  counts: ReadonlyMap<string, PromiseCounts>
}

export function addCounts({ nodeId, batchN, counts }: CounterBatch): Command<void> {
  const rows = [...counts]
    .sort(([a], [b]) => (a < b ? -1 : 1))
    .map(([job_id, { duplicatesRefused, replaysServed, staleWritesFenced }]) => ({
      job_id,
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
