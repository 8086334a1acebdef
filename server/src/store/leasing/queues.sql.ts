import { statement } from '../statement.ts'

const COLUMNS =
  'name, paused_at, max_concurrent, lease_ttl_seconds, continuation_seconds, result_ttl_seconds, fatal_error_codes'

/** Takes a queue: what is set for it. */
export const readQueue = statement('read_queue', `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $1`)

/**
 * Names a queue for a lock of its own: its row may not be there yet, and a share of it would be written by every lease. Who
 * leases shares this, whoever closes the queue has it alone.
 */
export const queueLock = (queue: string) => `hashtextextended('ichido.queues ' || ${queue}, 0)`

/**
 * Takes a queue that is about to be paused or limited. Whoever was leasing from it unlimited has committed then, and is
 * counted by whoever leases next; whoever comes waits, and sees what was set. Before its row is locked, as in a lease.
 */
export const closeQueue = statement('close_queue', {
  postgres: `SELECT pg_advisory_xact_lock(${queueLock('$1::text')})`,
  sqlite: [],
})

/** Takes queues: the lists of those that have one. */
export const readFatalCodes = statement('read_fatal_codes', {
  postgres: `SELECT name, fatal_error_codes FROM ichido.queues WHERE name = ANY($1::text[]) AND fatal_error_codes IS NOT NULL`,
  sqlite: `SELECT name, fatal_error_codes FROM ichido.queues WHERE name = $1 AND fatal_error_codes IS NOT NULL`,
})

/** Takes a queue. Whoever leases from it under a limit waits, and then sees what was set. */
export const lockQueue = statement('lock_queue', {
  postgres: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $1 FOR UPDATE`,
  sqlite: `SELECT ${COLUMNS} FROM ichido.queues WHERE name = $1`,
})

/** Takes a queue that nothing may have been set for yet. */
export const insertQueue = statement(
  'insert_queue',
  'INSERT INTO ichido.queues (name) VALUES ($1) ON CONFLICT (name) DO NOTHING',
)

/** Takes queue, whether it is paused, limit, lease time, continuation time, life of results, fatal error codes (JSON). A pause keeps its beginning. */
export const updateQueue = statement('update_queue', {
  postgres: `UPDATE ichido.queues SET paused_at = CASE WHEN $2::boolean THEN coalesce(paused_at, now_ms()) END,
      max_concurrent = $3, lease_ttl_seconds = $4, continuation_seconds = $5, result_ttl_seconds = $6,
      fatal_error_codes = $7
    WHERE name = $1 RETURNING ${COLUMNS}`,
  sqlite: `UPDATE ichido.queues SET paused_at = CASE WHEN $2 THEN coalesce(paused_at, now_ms()) END,
      max_concurrent = $3, lease_ttl_seconds = $4, continuation_seconds = $5, result_ttl_seconds = $6,
      fatal_error_codes = $7
    WHERE name = $1 RETURNING ${COLUMNS}`,
})

/** Takes a limit and the name that the page before ended with: queues that something is set for or that have work, by name. */
export const listQueues = statement(
  'list_queues',
  `WITH u AS (
      SELECT queue, count(*) AS ready, 0 AS delayed, 0 AS running, min(run_at) AS oldest
        FROM ichido.runs WHERE state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL AND queue > $2 GROUP BY queue
      UNION ALL SELECT queue, 0, count(*), 0, NULL
        FROM ichido.runs WHERE state = 'PENDING' AND fair_tag IS NULL AND queue > $2 GROUP BY queue
      UNION ALL SELECT queue, 0, 0, count(*), NULL
        FROM ichido.runs WHERE state IN ('ASSIGNED', 'RUNNING') AND queue > $2 GROUP BY queue
      UNION ALL SELECT name, 0, 0, 0, NULL FROM ichido.queues WHERE name > $2),
    s AS (SELECT queue AS name, CAST(sum(ready) AS bigint) AS ready, CAST(sum(delayed) AS bigint) AS delayed,
        CAST(sum(running) AS bigint) AS running, min(oldest) AS oldest
      FROM u GROUP BY queue ORDER BY queue LIMIT $1)
    SELECT s.name, s.ready, s.delayed, s.running, now_ms() - s.oldest AS oldest_ms, q.paused_at, q.max_concurrent,
      q.lease_ttl_seconds, q.continuation_seconds, q.result_ttl_seconds, q.fatal_error_codes
    FROM s LEFT JOIN ichido.queues q ON q.name = s.name ORDER BY s.name`,
)

/** Takes a queue. */
export const countQueue = statement(
  'count_queue',
  `SELECT
    (SELECT count(*) FROM ichido.runs WHERE queue = $1 AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL) AS ready,
    (SELECT count(*) FROM ichido.runs WHERE queue = $1 AND state = 'PENDING' AND fair_tag IS NULL) AS delayed,
    (SELECT count(*) FROM ichido.runs WHERE queue = $1 AND state IN ('ASSIGNED', 'RUNNING')) AS running,
    (SELECT now_ms() - min(run_at) FROM ichido.runs
      WHERE queue = $1 AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL) AS oldest_ms`,
)

/** Takes a queue, its kinds that can be leased, one by one, and a priority: how far its work of each has got. */
export const readHeads = statement('read_heads', {
  postgres: `SELECT h.fair_tag FROM unnest($1::text[], $2::text[], $3::integer[]) AS t(queue, kind, priority)
    CROSS JOIN LATERAL (SELECT fair_tag FROM ichido.runs
      WHERE queue = t.queue AND kind = t.kind AND priority = t.priority AND state IN ('PENDING', 'ORPHANED')
        AND fair_tag IS NOT NULL
      ORDER BY fair_tag, id LIMIT 1) h`,
  sqlite: `SELECT fair_tag FROM ichido.runs
    WHERE queue = $1 AND kind = $2 AND priority = $3 AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL
    ORDER BY fair_tag, id LIMIT 1`,
})
