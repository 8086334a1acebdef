import { statement } from '../statement.ts'

const COLUMNS =
  'name, paused_at, max_concurrent, lease_ttl_seconds, continuation_seconds, result_ttl_seconds, fatal_error_codes'

const SETTINGS_ROW = {
  paused_at: 'integer?',
  max_concurrent: 'integer?',
  lease_ttl_seconds: 'integer?',
  continuation_seconds: 'integer?',
  result_ttl_seconds: 'integer?',
  fatal_error_codes: { json: (value: unknown) => (value === null ? null : parseCodes(value)) },
} as const
const QUEUE_ROW = { name: 'text', ...SETTINGS_ROW } as const
const COUNTS_ROW = { ready: 'integer', delayed: 'integer', running: 'integer', oldest_ms: 'integer?' } as const

function parseCodes(value: unknown): string[] {
  if (!Array.isArray(value) || !value.every((code) => typeof code === 'string')) throw new TypeError('No list of codes')
  return value
}

export const readQueue = statement('read_queue', {
  params: { name: 'text' },
  row: QUEUE_ROW,
  sql: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $name`,
})

/**
 * Names a queue for a lock of its own: its row may not be there yet, and a share of it would be written by every lease. Who
 * leases shares this, whoever closes the queue has it alone.
 */
export const queueLock = (queue: string) => `hashtextextended('ichido.queues ' || ${queue}, 0)`

/**
 * For a queue that is about to be paused or limited. Leases that were under way without a limit have committed then, and the
 * next lease counts them. A lease that comes later waits, and sees the change. Locked before the row, as in a lease.
 */
export const closeQueue = statement('close_queue', {
  params: { name: 'text' },
  row: {},
  postgres: `SELECT pg_advisory_xact_lock(${queueLock('$name::text')})`,
  sqlite: [],
})

/** The lists of the queues that have one. */
export const readFatalCodes = statement('read_fatal_codes', {
  params: { name: 'text' },
  row: { name: 'text', fatal_error_codes: { json: parseCodes } },
  postgres: `SELECT name, fatal_error_codes FROM ichido.queues WHERE name = ANY($name::text[]) AND fatal_error_codes IS NOT NULL`,
  sqlite: `SELECT name, fatal_error_codes FROM ichido.queues WHERE name = $name AND fatal_error_codes IS NOT NULL`,
})

/** A lease from the queue under a limit waits, and then sees the change. */
export const lockQueue = statement('lock_queue', {
  params: { name: 'text' },
  row: QUEUE_ROW,
  postgres: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $name FOR UPDATE`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $name`,
})

/** Nothing may be set for the queue yet. */
export const insertQueue = statement('insert_queue', {
  params: { name: 'text' },
  row: {},
  sql: 'INSERT INTO ichido.queues (name) VALUES ($name) ON CONFLICT (name) DO NOTHING',
})

/** A pause keeps its beginning. */
export const updateQueue = statement('update_queue', {
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
export const listQueues = statement('list_queues', {
  params: { max: 'integer', after: 'text' },
  row: { name: 'text', ...COUNTS_ROW, ...SETTINGS_ROW },
  sql: `WITH u AS (
      SELECT queue, count(*) AS ready, 0 AS delayed, 0 AS running, min(run_at) AS oldest
        FROM ichido.runs WHERE state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL AND queue > $after GROUP BY queue
      UNION ALL SELECT queue, 0, count(*), 0, NULL
        FROM ichido.runs WHERE state = 'PENDING' AND fair_tag IS NULL AND queue > $after GROUP BY queue
      UNION ALL SELECT queue, 0, 0, count(*), NULL
        FROM ichido.runs WHERE state IN ('ASSIGNED', 'RUNNING') AND queue > $after GROUP BY queue
      UNION ALL SELECT name, 0, 0, 0, NULL FROM ichido.queues WHERE name > $after),
    s AS (SELECT queue AS name, CAST(sum(ready) AS bigint) AS ready, CAST(sum(delayed) AS bigint) AS delayed,
        CAST(sum(running) AS bigint) AS running, min(oldest) AS oldest
      FROM u GROUP BY queue ORDER BY queue LIMIT $max)
    SELECT s.name, s.ready, s.delayed, s.running, now_ms() - s.oldest AS oldest_ms, q.paused_at, q.max_concurrent,
      q.lease_ttl_seconds, q.continuation_seconds, q.result_ttl_seconds, q.fatal_error_codes
    FROM s LEFT JOIN ichido.queues q ON q.name = s.name ORDER BY s.name`,
})

export const countQueue = statement('count_queue', {
  params: { queue: 'text' },
  row: COUNTS_ROW,
  sql: `SELECT
    (SELECT count(*) FROM ichido.runs WHERE queue = $queue AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL) AS ready,
    (SELECT count(*) FROM ichido.runs WHERE queue = $queue AND state = 'PENDING' AND fair_tag IS NULL) AS delayed,
    (SELECT count(*) FROM ichido.runs WHERE queue = $queue AND state IN ('ASSIGNED', 'RUNNING')) AS running,
    (SELECT now_ms() - min(run_at) FROM ichido.runs
      WHERE queue = $queue AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL) AS oldest_ms`,
})

/** How far the work of each kind of the queue has got. */
export const readHeads = statement('read_heads', {
  params: { queue: 'text', kind: 'text', priority: 'integer' },
  row: { fair_tag: 'integer' },
  postgres: `SELECT h.fair_tag FROM unnest($queue::text[], $kind::text[], $priority::integer[]) AS t(queue, kind, priority)
    CROSS JOIN LATERAL (SELECT fair_tag FROM ichido.runs
      WHERE queue = t.queue AND kind = t.kind AND priority = t.priority AND state IN ('PENDING', 'ORPHANED')
        AND fair_tag IS NOT NULL
      ORDER BY fair_tag, id LIMIT 1) h`,
  sqlite: `SELECT fair_tag FROM ichido.runs
    WHERE queue = $queue AND kind = $kind AND priority = $priority AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL
    ORDER BY fair_tag, id LIMIT 1`,
})
