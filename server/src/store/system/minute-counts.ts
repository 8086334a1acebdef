import type { MinuteCount, MinuteSum } from '../../core/limits/minute-counts.ts'
import { type Command, command } from '../port.ts'
import { each, now, query, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from './term.ts'

const COLUMNS = 'minute, name, counted_by, batch_n, count'
const ADD = 'count = m.count + excluded.count'
const THIS_MINUTE = 'CAST(now_ms() / 60000 AS bigint)'

const insertCount = statement('count_now', {
  params: { name: 'text', count: 'integer' },
  row: {},
  sql: `INSERT INTO ichido.minute_counts AS m (${COLUMNS}) VALUES (${THIS_MINUTE}, $name, '', 0, $count)
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET ${ADD}`,
})

/** A retried batch adds nothing twice after an uncertain commit. */
const insertMinuteCounts = statement('add_minute_counts', {
  params: { minute: 'integer', name: 'text', counted_by: 'text', batch_n: 'integer', count: 'integer' },
  row: {},
  postgres: `INSERT INTO ichido.minute_counts AS m (${COLUMNS})
    SELECT * FROM unnest($minute::bigint[], $name::text[], $counted_by::text[], $batch_n::bigint[], $count::bigint[])
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET batch_n = excluded.batch_n, ${ADD}
    WHERE m.batch_n < excluded.batch_n`,
  sqlite: `INSERT INTO ichido.minute_counts AS m (${COLUMNS}) VALUES ($minute, $name, $counted_by, $batch_n, $count)
    ON CONFLICT (minute, name, counted_by) DO UPDATE SET batch_n = excluded.batch_n, ${ADD}
    WHERE m.batch_n < excluded.batch_n`,
})

/** The sums over all nodes. The name may be one that only a newer node knows. */
const readMinuteCounts = statement('read_minute_counts', {
  params: { age_ms: 'integer' },
  row: { minute: 'integer', name: 'text', count: 'integer' },
  sql: `SELECT minute, name, CAST(sum(count) AS bigint) AS count FROM ichido.minute_counts
    WHERE minute >= CAST(((SELECT now_ms()) - CAST($age_ms AS bigint)) / 60000 AS bigint) GROUP BY minute, name`,
})

const OLD = 'minute < CAST(((SELECT now_ms()) - CAST($age_ms AS bigint)) / 60000 AS bigint)'

const deleteMinuteCounts = statement('remove_minute_counts', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { minute: 'integer' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT m.ctid AS place FROM l CROSS JOIN ichido.minute_counts m WHERE m.${OLD}
      ORDER BY m.minute LIMIT $max FOR UPDATE OF m SKIP LOCKED)
    DELETE FROM ichido.minute_counts WHERE ctid IN (SELECT place FROM c) RETURNING minute`,
  sqlite: `DELETE FROM ichido.minute_counts WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.minute_counts WHERE ${OLD} ORDER BY minute LIMIT $max) RETURNING minute`,
})

export interface MinuteBatch {
  minute: number
  nodeId: string
  /** Higher than in the batch before, and the same for a retry. */
  batchN: number
  counts: ReadonlyMap<MinuteCount, number>
}

export function addMinuteCounts({ minute, nodeId, batchN, counts }: MinuteBatch): Command<void> {
  const rows = [...counts].sort().map(([name, count]) => ({ minute, name, counted_by: nodeId, batch_n: batchN, count }))
  return command('add_minute_counts', function* work(): Work<void> {
    yield* each(insertMinuteCounts, rows)
  })
}

/** The sums of the last `ageMs`, and the store's clock. */
export function findMinuteCounts(ageMs: number): Command<{ sums: MinuteSum[]; nowMs: number }> {
  return command('find_minute_counts', function* work() {
    const nowMs = yield* now()
    return { sums: yield* query(readMinuteCounts, { age_ms: Math.ceil(ageMs) }), nowMs }
  })
}

export function removeMinuteCounts(term: Term, ageMs: number, max: number): Command<number> {
  return command('remove_minute_counts', function* work(): Work<number> {
    return (yield* query(deleteMinuteCounts, { ...term, max, age_ms: Math.ceil(ageMs) })).length
  })
}

/**
 * Counts in the transaction of the counted change, so that nothing is missed or counted twice. It is the last step: all
 * nodes share the row of a minute, and a transaction that holds it must not wait for another lock.
 */
export function* countNow(name: MinuteCount, times: number): Work<void> {
  if (times > 0) yield* query(insertCount, { name, count: times })
}
