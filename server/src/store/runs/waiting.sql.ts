import { READY } from '../leasing/leases.sql.ts'
import { statement } from '../statement.ts'

/** So many runs are looked at for the oldest: the first ones of as many users. */
const HEADS_MAX = 100

/** Of a worker that was revoked nobody holds the lease any more, and nothing is taken up after it. */
const WITH_LEASE = 'AND r.kind = $kind AND r.lease_id IS NOT NULL'
const HELD_OF = `FROM ichido.runs r WHERE r.queue = $queue AND r.state IN ('ASSIGNED', 'RUNNING')`
const online = (onlineMs: string) =>
  `w.revoked_at IS NULL AND w.detached_at IS NULL AND w.last_seen_at > now_ms() - ${onlineMs}`

/** The obstacles between a run and a worker. A worker is known for `online_ms` after it was seen. */
export const readObstacles = statement('read_obstacles', {
  params: { queue: 'text', kind: 'text', online_ms: 'integer' },
  row: {
    now: 'integer',
    paused_at: 'integer?',
    max_concurrent: 'integer?',
    running: 'integer',
    at_work: 'flag',
    online: 'flag',
  },
  postgres: `SELECT now_ms() AS now, q.paused_at, q.max_concurrent,
      (SELECT count(*) ${HELD_OF}) AS running,
      EXISTS (SELECT 1 ${HELD_OF} ${WITH_LEASE}) AS at_work,
      EXISTS (SELECT 1 FROM ichido.workers w WHERE ${online('$online_ms')} AND (w.queues = 'null' OR w.queues::jsonb ? $queue)) AS online
    FROM (SELECT 1) one LEFT JOIN ichido.queues q ON q.name = $queue`,
  sqlite: `SELECT now_ms() AS now, q.paused_at, q.max_concurrent,
      (SELECT count(*) ${HELD_OF}) AS running,
      EXISTS (SELECT 1 ${HELD_OF} ${WITH_LEASE}) AS at_work,
      EXISTS (SELECT 1 FROM ichido.workers w WHERE ${online('$online_ms')} AND (w.queues = 'null' OR $queue IN (
        SELECT value FROM json_each(w.queues)))) AS online
    FROM (SELECT 1) one LEFT JOIN ichido.queues q ON q.name = $queue`,
})

/** The queues with runs that are due and that are not paused, hopping from one to the next in the index. */
export const readReadyQueues = statement('read_ready_queues', {
  params: {},
  row: { queue: 'text' },
  sql: `WITH RECURSIVE q AS (
      SELECT (SELECT min(queue) FROM ichido.runs WHERE ${READY}) AS queue
      UNION ALL
      SELECT (SELECT min(queue) FROM ichido.runs WHERE queue > q.queue AND ${READY}) FROM q WHERE q.queue IS NOT NULL)
    SELECT queue FROM q WHERE queue IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM ichido.queues s WHERE s.name = q.queue AND s.paused_at IS NOT NULL)`,
})

const nextGroup = (queue: string, kind: string, priority: string) => `SELECT * FROM (
      SELECT kind, priority FROM ichido.runs WHERE queue = ${queue} AND kind = ${kind} AND priority < ${priority} AND ${READY}
      ORDER BY priority DESC LIMIT 1) same
    UNION ALL SELECT * FROM (
      SELECT kind, priority FROM ichido.runs WHERE queue = ${queue} AND kind > ${kind} AND ${READY}
      ORDER BY kind, priority DESC LIMIT 1) other
    LIMIT 1`

/** The kind and priority that come after these among the runs that are due. */
export const readNextGroup = statement('read_next_group', {
  params: { queue: 'text', kind: 'text', priority: 'integer' },
  row: { queue: 'text', kind: 'text', priority: 'integer' },
  postgres: `SELECT t.queue, n.kind, n.priority FROM unnest($queue::text[], $kind::text[], $priority::integer[]) AS t(queue, kind, priority)
    CROSS JOIN LATERAL (${nextGroup('t.queue', 't.kind', 't.priority')}) n`,
  sqlite: `SELECT $queue AS queue, n.kind, n.priority FROM (${nextGroup('$queue', '$kind', '$priority')}) n`,
})

const oldest = (queue: string, kind: string, priority: string) => `(
      SELECT now_ms() - min(h.run_at) FROM (SELECT run_at FROM ichido.runs
        WHERE queue = ${queue} AND kind = ${kind} AND priority = ${priority} AND ${READY}
        ORDER BY fair_tag, id LIMIT ${HEADS_MAX}) h)`

/** How long the oldest run has been due. Every user's oldest is among the first, for users take turns. */
export const readOldest = statement('read_oldest', {
  params: { queue: 'text', kind: 'text', priority: 'integer' },
  row: { queue: 'text', oldest_ms: 'integer?' },
  postgres: `SELECT t.queue, ${oldest('t.queue', 't.kind', 't.priority')} AS oldest_ms
    FROM unnest($queue::text[], $kind::text[], $priority::integer[]) AS t(queue, kind, priority)`,
  sqlite: `SELECT $queue AS queue, ${oldest('$queue', '$kind', '$priority')} AS oldest_ms`,
})

/** The queues of all runs that workers hold. */
export const readHeldQueues = statement('read_held_queues', {
  params: {},
  row: { queue: 'text' },
  sql: "SELECT DISTINCT queue FROM ichido.runs WHERE latest AND state IN ('ASSIGNED', 'RUNNING')",
})

/** Answers with the queue if there is a worker for it. A worker is known for `online_ms` after it was seen. */
export const readServed = statement('read_served', {
  params: { queue: 'text', online_ms: 'integer' },
  row: { queue: 'text' },
  postgres: `SELECT t.queue FROM unnest($queue::text[], $online_ms::bigint[]) AS t(queue, online_ms)
    WHERE EXISTS (SELECT 1 FROM ichido.workers w
      WHERE ${online('t.online_ms')} AND (w.queues = 'null' OR w.queues::jsonb ? t.queue))`,
  sqlite: `SELECT $queue AS queue WHERE EXISTS (SELECT 1 FROM ichido.workers w
      WHERE ${online('$online_ms')} AND (w.queues = 'null' OR $queue IN (SELECT value FROM json_each(w.queues))))`,
})

export const readAwaited = statement('read_awaited', {
  params: { job_id: 'text', max: 'integer' },
  row: { name: 'text' },
  sql: `SELECT name FROM ichido.artifacts WHERE job_id = $job_id AND run_id IS NULL AND state = 'awaited' ORDER BY name LIMIT $max`,
})

/** Answers when the job is a dead letter of a redrive that runs. */
export const readRedriveOf = statement('read_redrive_of', {
  params: { job_id: 'text' },
  row: { id: 'text', user_id: 'text' },
  sql: `SELECT o.id, d.user_id FROM ichido.dead_letters d JOIN ichido.redrives o ON o.id = d.redrive_id
    WHERE d.job_id = $job_id AND o.state = 'running'`,
})
