import { statement } from '../statement.ts'

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
