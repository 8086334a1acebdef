import { isListOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { type By, isRecorded, record } from '../access/audit.ts'
import { type Command, command, type Listed, pageOf } from '../port.ts'
import { each, exactlyOne, one, query, type RowOf, statement, type Work } from '../statement.ts'
import { DUE, queueLock, readyKinds } from './lease-runs.sql.ts'

const COLUMNS =
  'name, paused_at, max_concurrent, lease_ttl_seconds, continuation_seconds, result_ttl_seconds, fatal_error_codes'

const SETTINGS_ROW = {
  paused_at: 'integer?',
  max_concurrent: 'integer?',
  lease_ttl_seconds: 'integer?',
  continuation_seconds: 'integer?',
  result_ttl_seconds: 'integer?',
  fatal_error_codes: { json: stored('codes', orNull(isListOf(isText))) },
} as const
const QUEUE_ROW = { name: 'text', ...SETTINGS_ROW } as const
const COUNTS_ROW = { ready: 'integer', delayed: 'integer', running: 'integer', oldest_ms: 'integer?' } as const

const readQueue = statement('read_queue', {
  params: { name: 'text' },
  row: QUEUE_ROW,
  sql: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $name`,
})

/**
 * For a queue that is about to be paused or limited. It waits until running leases without a limit have committed, so the next
 * lease counts them. A later lease waits, and sees the change. The lock comes before the row, as in a lease.
 */
const closeQueue = statement('close_queue', {
  params: { name: 'text' },
  row: {},
  postgres: `SELECT pg_advisory_xact_lock(${queueLock('$name::text')})`,
  sqlite: [],
})

/** The lists of the queues that have one. */
const readFatalCodes = statement('read_fatal_codes', {
  params: { name: 'text' },
  row: { name: 'text', fatal_error_codes: { json: stored('codes', isListOf(isText)) } },
  postgres: `SELECT name, fatal_error_codes FROM ichido.queues WHERE name = ANY($name::text[]) AND fatal_error_codes IS NOT NULL`,
  sqlite: `SELECT name, fatal_error_codes FROM ichido.queues WHERE name = $name AND fatal_error_codes IS NOT NULL`,
})

/** A lease from the queue under a limit waits, and then sees the change. */
const lockQueue = statement('lock_queue', {
  params: { name: 'text' },
  row: QUEUE_ROW,
  postgres: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $name FOR UPDATE`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $name`,
})

/** Nothing may be set for the queue yet. */
const insertQueue = statement('insert_queue', {
  params: { name: 'text' },
  row: {},
  sql: 'INSERT INTO ichido.queues (name) VALUES ($name) ON CONFLICT (name) DO NOTHING',
})

/** A pause keeps its beginning. */
const updateQueue = statement('update_queue', {
  params: {
    name: 'text',
    paused: 'flag',
    max_concurrent: 'integer?',
    lease_ttl_seconds: 'integer?',
    continuation_seconds: 'integer?',
    result_ttl_seconds: 'integer?',
    fatal_error_codes: 'text?',
  },
  row: QUEUE_ROW,
  postgres: `UPDATE ichido.queues SET paused_at = CASE WHEN $paused::boolean THEN coalesce(paused_at, now_ms()) END,
      max_concurrent = $max_concurrent, lease_ttl_seconds = $lease_ttl_seconds, continuation_seconds = $continuation_seconds, result_ttl_seconds = $result_ttl_seconds,
      fatal_error_codes = $fatal_error_codes
    WHERE name = $name RETURNING ${COLUMNS}`,
  sqlite: `UPDATE ichido.queues SET paused_at = CASE WHEN $paused THEN coalesce(paused_at, now_ms()) END,
      max_concurrent = $max_concurrent, lease_ttl_seconds = $lease_ttl_seconds, continuation_seconds = $continuation_seconds, result_ttl_seconds = $result_ttl_seconds,
      fatal_error_codes = $fatal_error_codes
    WHERE name = $name RETURNING ${COLUMNS}`,
})

/** The queues after this name that have settings or work, by name. */
const listQueues = statement('list_queues', {
  params: { max: 'integer', after: 'text' },
  row: { name: 'text', ...COUNTS_ROW, ...SETTINGS_ROW },
  sql: `WITH u AS (
      SELECT queue, count(*) AS ready, 0 AS delayed, 0 AS running, min(run_at) AS oldest
        FROM ichido.ready WHERE ${DUE} AND queue > $after GROUP BY queue
      UNION ALL SELECT queue, 0, count(*), 0, NULL
        FROM ichido.ready WHERE fair_tag IS NULL AND queue > $after GROUP BY queue
      UNION ALL SELECT queue, 0, 0, count(*), NULL
        FROM ichido.held WHERE queue > $after GROUP BY queue
      UNION ALL SELECT name, 0, 0, 0, NULL FROM ichido.queues WHERE name > $after),
    s AS (SELECT queue AS name, CAST(sum(ready) AS bigint) AS ready, CAST(sum(delayed) AS bigint) AS delayed,
        CAST(sum(running) AS bigint) AS running, min(oldest) AS oldest
      FROM u GROUP BY queue ORDER BY queue LIMIT $max)
    SELECT s.name, s.ready, s.delayed, s.running, now_ms() - s.oldest AS oldest_ms, q.paused_at, q.max_concurrent,
      q.lease_ttl_seconds, q.continuation_seconds, q.result_ttl_seconds, q.fatal_error_codes
    FROM s LEFT JOIN ichido.queues q ON q.name = s.name ORDER BY s.name`,
})

const countQueue = statement('count_queue', {
  params: { queue: 'text' },
  row: COUNTS_ROW,
  sql: `SELECT
    (SELECT count(*) FROM ichido.ready WHERE queue = $queue AND ${DUE}) AS ready,
    (SELECT count(*) FROM ichido.ready WHERE queue = $queue AND fair_tag IS NULL) AS delayed,
    (SELECT count(*) FROM ichido.held WHERE queue = $queue) AS running,
    (SELECT now_ms() - min(run_at) FROM ichido.ready WHERE queue = $queue AND ${DUE}) AS oldest_ms`,
})

/** The first tag of each kind of the queue. */
const readHeads = statement('read_heads', {
  params: { queue: 'text', kind: 'text', priority: 'integer' },
  row: { fair_tag: 'integer' },
  postgres: `SELECT h.fair_tag FROM unnest($queue::text[], $kind::text[], $priority::integer[]) AS t(queue, kind, priority)
    CROSS JOIN LATERAL (SELECT fair_tag FROM ichido.ready
      WHERE queue = t.queue AND kind = t.kind AND priority = t.priority AND ${DUE}
      ORDER BY fair_tag, job_id LIMIT 1) h`,
  sqlite: `SELECT fair_tag FROM ichido.ready WHERE queue = $queue AND kind = $kind AND priority = $priority AND ${DUE}
    ORDER BY fair_tag, job_id LIMIT 1`,
})

export interface QueueSettings {
  paused: boolean
  maxConcurrent: number | null
  leaseTtlSeconds: number | null
  continuationSeconds: number | null
  resultTtlSeconds: number | null
  /** A failure with one of these codes is not retried. */
  fatalErrorCodes: readonly string[] | null
}

export interface QueueRows {
  /** Undefined when nothing is set for the queue. */
  settings: Omit<SettingsRow, 'name'> | undefined
  counts: RowOf<typeof countQueue>
}

type SettingsRow = RowOf<typeof readQueue>
type ListedQueue = RowOf<typeof listQueues>

const KINDS_MAX = 100

export function findQueue(name: string): Command<QueueRows> {
  return command('find_queue', () => readBoth(name))
}

function* readBoth(name: string): Work<QueueRows> {
  return { settings: yield* one(readQueue, { name }), counts: yield* exactlyOne(countQueue, { queue: name }) }
}

/** By name, after the last name of the page before. A queue's name is never empty. */
export function findQueues(limit: number, after: string | null): Command<Listed<ListedQueue>> {
  return command('find_queues', function* work(): Work<Listed<ListedQueue>> {
    const found = yield* query(listQueues, { max: limit + 1, after: after ?? '' })
    return pageOf(found, limit, ({ name }) => name)
  })
}

/** Sets what is given and leaves the rest. */
export function putQueue(name: string, changes: Partial<QueueSettings>, by: By): Command<QueueRows> {
  const closes = changes.paused === true || (changes.maxConcurrent ?? null) !== null
  return command('put_queue', function* work(again): Work<QueueRows> {
    if (closes) yield* query(closeQueue, { name })
    yield* query(insertQueue, { name })
    const before = toSettings(yield* one(lockQueue, { name }))
    if (yield* isRecorded(again, by)) return yield* readBoth(name)
    const after = { ...before, ...changes }
    const [was, is] = [describe(before), describe(after)]
    const codes = after.fatalErrorCodes === null ? null : JSON.stringify(after.fatalErrorCodes)
    yield* query(updateQueue, { name, ...is, fatal_error_codes: codes })
    if (JSON.stringify(was) !== JSON.stringify(is)) yield* record(by, 'queue.put', name, was, is)
    return yield* readBoth(name)
  })
}

function describe(settings: QueueSettings) {
  return {
    paused: settings.paused,
    max_concurrent: settings.maxConcurrent,
    lease_ttl_seconds: settings.leaseTtlSeconds,
    continuation_seconds: settings.continuationSeconds,
    result_ttl_seconds: settings.resultTtlSeconds,
    fatal_error_codes: settings.fatalErrorCodes,
  }
}

export function toSettings(row: QueueRows['settings']): QueueSettings {
  return {
    paused: (row?.paused_at ?? null) !== null,
    maxConcurrent: row?.max_concurrent ?? null,
    leaseTtlSeconds: row?.lease_ttl_seconds ?? null,
    continuationSeconds: row?.continuation_seconds ?? null,
    resultTtlSeconds: row?.result_ttl_seconds ?? null,
    fatalErrorCodes: row?.fatal_error_codes ?? null,
  }
}

/** By queue, the error codes that are not retried. */
export function* findFatalCodes(names: readonly string[]): Work<Map<string, readonly string[]>> {
  const rows = yield* each(
    readFatalCodes,
    [...new Set(names)].map((name) => ({ name })),
  )
  return new Map(rows.map((row) => [row.name, row.fatal_error_codes]))
}

/** The tag of the run that comes next, over all kinds; null when none waits. */
export function* queueHead(queue: string, priority: number): Work<number | null> {
  const kinds = yield* query(readyKinds, { queue, after: '', max: KINDS_MAX })
  const heads = yield* each(
    readHeads,
    kinds.map(({ kind }) => ({ queue, kind, priority })),
  )
  return heads.length === 0 ? null : Math.min(...heads.map((row) => row.fair_tag))
}
