import { isMapOf, isNumber, stored } from '../../core/json/stored-json.ts'
import { MINUTE_MS } from '../../core/limits/minute-counts.ts'
import {
  ALL_QUEUES,
  activityOf,
  addFigures,
  blockOf,
  type Figures,
  placeIn,
  type ROLL_UPS,
  SERIES_QUEUES_MAX,
  WRITABLE_MINUTES,
} from '../../core/limits/series.ts'
import { type Command, command } from '../port.ts'
import { each, now, one, query, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from './term.ts'

const COLUMNS = 'queue, at, span, counted_by, batch_n, activity, figures'
const KEY = 'queue, at, span, counted_by'
const figures = { json: stored('figures', isMapOf(isNumber)) }
const minutesAgo = (age: string) => `CAST((SELECT now_ms()) / 60000 - ${age} AS bigint)`
const IS_WRITABLE = `at >= ${minutesAgo(String(WRITABLE_MINUTES))}`
const REPLACE = `ON CONFLICT (${KEY}) DO UPDATE SET batch_n = excluded.batch_n, activity = excluded.activity, figures = excluded.figures
    WHERE s.batch_n < excluded.batch_n`

/**
 * The row of a node has all that it counted in the minute, so a repeat changes nothing, and an older batch that arrives late
 * undoes nothing. A minute that may be rolled up is not written: it would count twice.
 */
const putCounts = statement('put_series_counts', {
  params: {
    queue: 'text',
    at: 'integer',
    counted_by: 'text',
    batch_n: 'integer',
    activity: 'integer',
    figures: 'text',
  },
  row: {},
  postgres: `INSERT INTO ichido.queue_series AS s (${COLUMNS})
    SELECT queue, at, 1, counted_by, batch_n, activity, figures
    FROM unnest($queue::text[], $at::bigint[], $counted_by::text[], $batch_n::bigint[], $activity::bigint[], $figures::text[])
      AS t(queue, at, counted_by, batch_n, activity, figures)
    WHERE ${IS_WRITABLE} ${REPLACE}`,
  sqlite: `INSERT INTO ichido.queue_series AS s (${COLUMNS})
    SELECT $queue, t.at, 1, $counted_by, $batch_n, $activity, $figures FROM (SELECT $at AS at) t WHERE ${IS_WRITABLE} ${REPLACE}`,
})

const THIS_MINUTE = minutesAgo('0')
const OF_LEADER = `1, '', 0, 0`

/** The row of all queues is the first of a sample. If this minute has one, another leader has sampled it. */
const beginSample = statement('begin_series_sample', {
  params: { ...TERM, queue: 'text', figures: 'text' },
  row: { at: 'integer' },
  postgres: `${LED} INSERT INTO ichido.queue_series (${COLUMNS})
    SELECT $queue, ${THIS_MINUTE}, ${OF_LEADER}, $figures FROM l ON CONFLICT (${KEY}) DO NOTHING RETURNING at`,
  sqlite: `INSERT INTO ichido.queue_series (${COLUMNS})
    SELECT $queue, ${THIS_MINUTE}, ${OF_LEADER}, $figures WHERE ${LED_SQLITE} ON CONFLICT (${KEY}) DO NOTHING RETURNING at`,
})

/** Follows `beginSample` in its transaction, which has the fence. */
const addToSample = statement('add_to_series_sample', {
  params: { queue: 'text', at: 'integer', figures: 'text' },
  row: {},
  postgres: `INSERT INTO ichido.queue_series (${COLUMNS}) SELECT queue, at, ${OF_LEADER}, figures
    FROM unnest($queue::text[], $at::bigint[], $figures::text[]) AS t(queue, at, figures)`,
  sqlite: `INSERT INTO ichido.queue_series (${COLUMNS}) VALUES ($queue, $at, ${OF_LEADER}, $figures)`,
})

const readSampled = statement('read_series_sampled', {
  params: { queue: 'text' },
  row: { at: 'integer' },
  sql: `SELECT at FROM ichido.queue_series WHERE queue = $queue AND at = ${THIS_MINUTE} AND span = 1 AND counted_by = ''`,
})

/** Blocks of `$to` minutes that have been over for `$after` minutes. */
const isOver = (param: (name: string) => string) =>
  `span = ${param('span')} AND at < ${minutesAgo(param('after'))} / ${param('to')} * ${param('to')}`
const bigint = (name: string) => `$${name}::bigint`
const plain = (name: string) => `$${name}`

/** Takes the oldest rows out of the table. */
const takeOver = statement('take_series_over', {
  params: { ...TERM, max: 'integer', span: 'integer', to: 'integer', after: 'integer' },
  row: { queue: 'text', at: 'integer', figures },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT s.ctid AS place FROM l CROSS JOIN ichido.queue_series s WHERE ${isOver(bigint)}
      ORDER BY s.at LIMIT $max FOR UPDATE OF s)
    DELETE FROM ichido.queue_series WHERE ctid IN (SELECT place FROM c) RETURNING queue, at, figures`,
  sqlite: `DELETE FROM ichido.queue_series WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.queue_series WHERE ${isOver(plain)} ORDER BY at LIMIT $max) RETURNING queue, at, figures`,
})

const readBlock = statement('read_series_block', {
  params: { span: 'integer', at: 'integer' },
  row: { queue: 'text', figures },
  sql: 'SELECT queue, figures FROM ichido.queue_series WHERE span = $span AND at = $at',
})

/** Follows `takeOver` in its transaction, which has the fence. */
const putBlock = statement('put_series_block', {
  params: { queue: 'text', at: 'integer', span: 'integer', activity: 'integer', figures: 'text' },
  row: {},
  postgres: `INSERT INTO ichido.queue_series AS s (${COLUMNS})
    SELECT queue, at, span, '', 0, activity, figures
    FROM unnest($queue::text[], $at::bigint[], $span::integer[], $activity::bigint[], $figures::text[])
      AS t(queue, at, span, activity, figures)
    ON CONFLICT (${KEY}) DO UPDATE SET activity = excluded.activity, figures = excluded.figures`,
  sqlite: `INSERT INTO ichido.queue_series AS s (${COLUMNS}) VALUES ($queue, $at, $span, '', 0, $activity, $figures)
    ON CONFLICT (${KEY}) DO UPDATE SET activity = excluded.activity, figures = excluded.figures`,
})

const OLD = `span = $span AND at < ${minutesAgo('CAST($age_minutes AS bigint)')}`

const deleteOld = statement('remove_series', {
  params: { ...TERM, max: 'integer', span: 'integer', age_minutes: 'integer' },
  row: { at: 'integer' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT s.ctid AS place FROM l CROSS JOIN ichido.queue_series s WHERE ${OLD} ORDER BY s.at LIMIT $max FOR UPDATE OF s SKIP LOCKED)
    DELETE FROM ichido.queue_series WHERE ctid IN (SELECT place FROM c) RETURNING at`,
  sqlite: `DELETE FROM ichido.queue_series WHERE ${LED_SQLITE} AND rowid IN (
      SELECT rowid FROM ichido.queue_series WHERE ${OLD} ORDER BY at LIMIT $max) RETURNING at`,
})

const readRows = statement('read_series', {
  params: { queue: 'text', from: 'integer' },
  row: { at: 'integer', figures },
  sql: 'SELECT at, figures FROM ichido.queue_series WHERE queue = $queue AND at >= $from',
})

/** The constants are the lengths of all blocks: with them the index narrows each length by its time. */
const readNames = statement('read_series_queues', {
  params: { from: 'integer', max: 'integer' },
  row: { queue: 'text', activity: 'integer' },
  sql: `SELECT queue, CAST(sum(activity) AS bigint) AS activity FROM ichido.queue_series
    WHERE span IN (1, 15, 120) AND at >= $from GROUP BY queue ORDER BY activity DESC, queue LIMIT $max`,
})

export interface SeriesBatch {
  minute: number
  /** Names the node and the minute: after a jump of the clock, a minute that comes again gets rows of its own. */
  countedBy: string
  /** Higher than in the batch before, and the same for a retry. */
  batchN: number
  /** All that was counted in the minute, for each queue that has changed. */
  queues: ReadonlyMap<string, Readonly<Figures>>
}

export function putSeriesCounts({ minute, countedBy, batchN, queues }: SeriesBatch): Command<void> {
  const rows = [...queues].sort(byQueue).map(([queue, figures]) => ({
    queue,
    at: minute,
    counted_by: countedBy,
    batch_n: batchN,
    activity: activityOf(figures),
    figures: JSON.stringify(figures),
  }))
  return command('put_series_counts', function* work(): Work<void> {
    yield* each(putCounts, rows)
  })
}

const byQueue = ([a]: readonly [string, unknown], [b]: readonly [string, unknown]) => (a < b ? -1 : 1)

/** Whether the leader has sampled this minute, and when the next one begins. */
export function findSampled(): Command<{ sampled: boolean; nextInMs: number }> {
  return command('find_series_sampled', function* work() {
    const sampled = (yield* one(readSampled, { queue: ALL_QUEUES })) !== undefined
    return { sampled, nextInMs: MINUTE_MS - ((yield* now()) % MINUTE_MS) }
  })
}

/** Stores a sample as that of this minute, once. The answer is false if it has one, or another node leads. */
export function addSample(
  term: Term,
  all: Readonly<Figures>,
  queues: ReadonlyMap<string, Readonly<Figures>>,
): Command<boolean> {
  return command('add_series_sample', function* work(): Work<boolean> {
    const begun = yield* one(beginSample, { ...term, queue: ALL_QUEUES, figures: JSON.stringify(all) })
    if (begun === undefined) return false
    const rows = [...queues].sort(byQueue)
    yield* each(
      addToSample,
      rows.map(([queue, figures]) => ({ queue, at: begun.at, figures: JSON.stringify(figures) })),
    )
    return true
  })
}

/**
 * Moves the oldest rows into longer blocks, and returns how many it took. A row is removed in the transaction that adds its
 * figures to the block, so nothing is lost or counted twice, wherever a leader dies.
 */
export function rollUp(term: Term, { from, to, after }: (typeof ROLL_UPS)[number], max: number): Command<number> {
  return command('roll_series_up', function* work(): Work<number> {
    const taken = yield* query(takeOver, { ...term, max, span: from, to, after })
    for (const [at, rows] of Map.groupBy(taken, (row) => blockOf(row.at, to))) {
      const before = yield* query(readBlock, { span: to, at })
      const block = new Map(before.map((row) => [row.queue, row.figures]))
      const changed = new Map<string, Figures>()
      for (const row of rows.toSorted((a, b) => activityOf(b.figures) - activityOf(a.figures))) {
        const queue = placeIn(block, row.queue)
        const sum = block.get(queue) ?? {}
        addFigures(sum, row.figures)
        block.set(queue, sum)
        changed.set(queue, sum)
      }
      const sums = [...changed].sort(byQueue)
      yield* each(
        putBlock,
        sums.map(([queue, sum]) => ({
          ...{ queue, at, span: to, activity: activityOf(sum) },
          figures: JSON.stringify(sum),
        })),
      )
    }
    return taken.length
  })
}

/** Removes the longest blocks that are older than this. */
export function removeSeries(term: Term, ageMinutes: number, max: number): Command<number> {
  return command('remove_series', function* work(): Work<number> {
    return (yield* query(deleteOld, { ...term, max, span: 120, age_minutes: ageMinutes })).length
  })
}

/** The rows of a queue, and of all queues, from this minute on. Each row is in one step: no block is longer than a step. */
export function findSeries(queue: string, from: number): Command<SeriesRows> {
  return command('find_series', function* work(): Work<SeriesRows> {
    const all = yield* query(readRows, { queue: ALL_QUEUES, from })
    return { all, own: queue === ALL_QUEUES ? all : yield* query(readRows, { queue, from }) }
  })
}

const readMinutes = statement('read_series_minutes', {
  params: { from: 'integer' },
  row: { queue: 'text', figures },
  sql: 'SELECT queue, figures FROM ichido.queue_series WHERE span = 1 AND at >= $from',
})

/** The figures of each queue in the last minutes, and how long that is. */
export function findRecentFigures(minutes: number): Command<{ overMs: number; queues: Map<string, Figures> }> {
  return command('find_recent_figures', function* work() {
    const nowMs = yield* now()
    const from = Math.floor(nowMs / MINUTE_MS) - minutes
    const queues = new Map<string, Figures>()
    for (const row of yield* query(readMinutes, { from })) {
      if (row.queue === ALL_QUEUES) continue
      const sum = queues.get(row.queue) ?? {}
      addFigures(sum, row.figures)
      queues.set(row.queue, sum)
    }
    return { overMs: nowMs - from * MINUTE_MS, queues }
  })
}

export interface SeriesRows {
  all: readonly SeriesRow[]
  own: readonly SeriesRow[]
}

interface SeriesRow {
  readonly at: number
  readonly figures: Readonly<Figures>
}

/** The queues with rows from this minute on, the most active first. */
export function findSeriesQueues(from: number): Command<string[]> {
  return command('find_series_queues', function* work(): Work<string[]> {
    const rows = yield* query(readNames, { from, max: SERIES_QUEUES_MAX + 2 })
    const names = rows.map(({ queue }) => queue).filter((queue) => queue !== ALL_QUEUES)
    return names.slice(0, SERIES_QUEUES_MAX)
  })
}
