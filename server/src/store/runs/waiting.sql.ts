import { READY } from '../leasing/leases.sql.ts'
import { statement } from '../statement.ts'

/** So many runs are looked at for the oldest: the first ones of as many users. */
const HEADS_MAX = 100

/** Of a worker that was revoked nobody holds the lease any more, and nothing is taken up after it. */
const WITH_LEASE = 'AND r.kind = $2 AND r.lease_id IS NOT NULL'
const HELD_OF = `FROM ichido.runs r WHERE r.queue = $1 AND r.state IN ('ASSIGNED', 'RUNNING')`
const online = (onlineMs: string) =>
  `w.revoked_at IS NULL AND w.detached_at IS NULL AND w.last_seen_at > now_ms() - ${onlineMs}`

/** Takes queue, kind, and for how many ms a worker is known after it was seen. What stands between a run and a worker. */
export const readObstacles = statement('read_obstacles', {
  postgres: `SELECT now_ms() AS now, q.paused_at, q.max_concurrent,
      (SELECT count(*) ${HELD_OF}) AS running,
      EXISTS (SELECT 1 ${HELD_OF} ${WITH_LEASE}) AS at_work,
      EXISTS (SELECT 1 FROM ichido.workers w WHERE ${online('$3')} AND (w.queues = 'null' OR w.queues::jsonb ? $1)) AS online
    FROM (SELECT 1) one LEFT JOIN ichido.queues q ON q.name = $1`,
  sqlite: `SELECT now_ms() AS now, q.paused_at, q.max_concurrent,
      (SELECT count(*) ${HELD_OF}) AS running,
      EXISTS (SELECT 1 ${HELD_OF} ${WITH_LEASE}) AS at_work,
      EXISTS (SELECT 1 FROM ichido.workers w WHERE ${online('$3')} AND (w.queues = 'null' OR $1 IN (
        SELECT value FROM json_each(w.queues)))) AS online
    FROM (SELECT 1) one LEFT JOIN ichido.queues q ON q.name = $1`,
})

/** The queues with runs that are due and that are not paused, hopping from one to the next in the index. */
export const readReadyQueues = statement(
  'read_ready_queues',
  `WITH RECURSIVE q AS (
      SELECT (SELECT min(queue) FROM ichido.runs WHERE ${READY}) AS queue
      UNION ALL
      SELECT (SELECT min(queue) FROM ichido.runs WHERE queue > q.queue AND ${READY}) FROM q WHERE q.queue IS NOT NULL)
    SELECT queue FROM q WHERE queue IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM ichido.queues s WHERE s.name = q.queue AND s.paused_at IS NOT NULL)`,
)

const nextGroup = (queue: string, kind: string, priority: string) => `SELECT * FROM (
      SELECT kind, priority FROM ichido.runs WHERE queue = ${queue} AND kind = ${kind} AND priority < ${priority} AND ${READY}
      ORDER BY priority DESC LIMIT 1) same
    UNION ALL SELECT * FROM (
      SELECT kind, priority FROM ichido.runs WHERE queue = ${queue} AND kind > ${kind} AND ${READY}
      ORDER BY kind, priority DESC LIMIT 1) other
    LIMIT 1`

/** Takes queue, kind and priority: the kind and priority that come after them among the runs that are due. */
export const readNextGroup = statement('read_next_group', {
  postgres: `SELECT t.queue, n.kind, n.priority FROM unnest($1::text[], $2::text[], $3::integer[]) AS t(queue, kind, priority)
    CROSS JOIN LATERAL (${nextGroup('t.queue', 't.kind', 't.priority')}) n`,
  sqlite: `SELECT $1 AS queue, n.kind, n.priority FROM (${nextGroup('$1', '$2', '$3')}) n`,
})

const oldest = (queue: string, kind: string, priority: string) => `(
      SELECT now_ms() - min(h.run_at) FROM (SELECT run_at FROM ichido.runs
        WHERE queue = ${queue} AND kind = ${kind} AND priority = ${priority} AND ${READY}
        ORDER BY fair_tag, id LIMIT ${HEADS_MAX}) h)`

/** Takes queue, kind and priority: for how long the oldest run has been due. Every user's oldest is among the first, for users take turns. */
export const readOldest = statement('read_oldest', {
  postgres: `SELECT t.queue, ${oldest('t.queue', 't.kind', 't.priority')} AS oldest_ms
    FROM unnest($1::text[], $2::text[], $3::integer[]) AS t(queue, kind, priority)`,
  sqlite: `SELECT $1 AS queue, ${oldest('$1', '$2', '$3')} AS oldest_ms`,
})

/** The queues of all runs that workers hold. */
export const readHeldQueues = statement(
  'read_held_queues',
  "SELECT DISTINCT queue FROM ichido.runs WHERE latest AND state IN ('ASSIGNED', 'RUNNING')",
)

/** Takes a queue, and for how many ms a worker is known after it was seen. Answers with the queue if there is a worker for it. */
export const readServed = statement('read_served', {
  postgres: `SELECT t.queue FROM unnest($1::text[], $2::bigint[]) AS t(queue, online_ms)
    WHERE EXISTS (SELECT 1 FROM ichido.workers w
      WHERE ${online('t.online_ms')} AND (w.queues = 'null' OR w.queues::jsonb ? t.queue))`,
  sqlite: `SELECT $1 AS queue WHERE EXISTS (SELECT 1 FROM ichido.workers w
      WHERE ${online('$2')} AND (w.queues = 'null' OR $1 IN (SELECT value FROM json_each(w.queues))))`,
})

/** Takes a job and how many at most. */
export const readAwaited = statement(
  'read_awaited',
  `SELECT name FROM ichido.artifacts WHERE job_id = $1 AND run_id IS NULL AND state = 'awaited' ORDER BY name LIMIT $2`,
)

/** Takes a job. Answers when it is a dead letter of a redrive that runs. */
export const readRedriveOf = statement(
  'read_redrive_of',
  `SELECT o.id, d.user_id FROM ichido.dead_letters d JOIN ichido.redrives o ON o.id = d.redrive_id
    WHERE d.job_id = $1 AND o.state = 'running'`,
)
