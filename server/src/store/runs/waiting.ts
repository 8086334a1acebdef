import { awaitsUploads } from '../../core/run/artifact.ts'
import type { LastPoll, WaitingFacts } from '../../core/run/waiting.ts'
import type { ListedJob } from '../jobs/read-jobs.ts'
import { DUE } from '../leasing/lease-runs.sql.ts'
import { findQuota } from '../limits/quotas.ts'
import { type Command, command } from '../port.ts'
import { each, exactlyOne, one, type ParamsOf, query, statement, type Work } from '../statement.ts'

/** The oldest run is looked for among this many: the first runs of as many users. */
const HEADS_MAX = 100

const HELD_OF = 'FROM ichido.held r WHERE r.queue = $queue'
const online = (onlineMs: string) =>
  `w.revoked_at IS NULL AND w.detached_at IS NULL AND w.last_seen_at > now_ms() - ${onlineMs}`
/** A subquery with one value, so that PostgreSQL does not make it a join of all held runs. */
const draining = (worker: string) =>
  `(SELECT w.draining_since FROM ichido.workers w WHERE w.worker_id = ${worker}) IS NOT NULL`
/** A run of a revoked worker has no lease any more. Neither a revoked nor a draining worker takes another run. */
const AT_WORK = `EXISTS (SELECT 1 ${HELD_OF} AND r.kind = $kind AND r.token IS NOT NULL AND NOT (${draining('r.worker_id')}))`
const POSTGRES_QUEUE = `(w.queues = 'null' OR w.queues::jsonb ? $queue)`
const SQLITE_QUEUE = `(w.queues = 'null' OR $queue IN (SELECT value FROM json_each(w.queues)))`
const obstacles = (ofQueue: string) => `SELECT now_ms() AS now, q.paused_at, q.max_concurrent,
      (SELECT count(*) ${HELD_OF}) AS running, ${AT_WORK} AS at_work, ${draining('$asked_by')} AS asked_by_draining,
      EXISTS (SELECT 1 FROM ichido.workers w WHERE ${online('$online_ms')} AND ${ofQueue} AND w.draining_since IS NULL) AS online,
      EXISTS (SELECT 1 FROM ichido.workers w WHERE ${online('$online_ms')} AND ${ofQueue} AND w.draining_since IS NOT NULL) AS draining
    FROM (SELECT 1) one LEFT JOIN ichido.queues q ON q.name = $queue`

/** The obstacles between a run and a worker. A worker is known for `online_ms` after it was seen. */
const readObstacles = statement('read_obstacles', {
  params: { queue: 'text', kind: 'text', online_ms: 'integer', asked_by: 'text' },
  row: {
    now: 'integer',
    paused_at: 'integer?',
    max_concurrent: 'integer?',
    running: 'integer',
    at_work: 'flag',
    asked_by_draining: 'flag',
    online: 'flag',
    draining: 'flag',
  },
  postgres: obstacles(POSTGRES_QUEUE),
  sqlite: obstacles(SQLITE_QUEUE),
})

/** The queues with runs that are due and that are not paused, hopping from one to the next in the index. */
const readReadyQueues = statement('read_ready_queues', {
  params: {},
  row: { queue: 'text' },
  sql: `WITH RECURSIVE q AS (
      SELECT (SELECT min(queue) FROM ichido.ready WHERE ${DUE}) AS queue
      UNION ALL
      SELECT (SELECT min(queue) FROM ichido.ready WHERE queue > q.queue AND ${DUE}) FROM q WHERE q.queue IS NOT NULL)
    SELECT queue FROM q WHERE queue IS NOT NULL
      AND NOT EXISTS (SELECT 1 FROM ichido.queues s WHERE s.name = q.queue AND s.paused_at IS NOT NULL)`,
})

const nextGroup = (queue: string, kind: string, priority: string) => `SELECT * FROM (
      SELECT kind, priority FROM ichido.ready WHERE queue = ${queue} AND kind = ${kind} AND priority < ${priority} AND ${DUE}
      ORDER BY priority DESC LIMIT 1) same
    UNION ALL SELECT * FROM (
      SELECT kind, priority FROM ichido.ready WHERE queue = ${queue} AND kind > ${kind} AND ${DUE}
      ORDER BY kind, priority DESC LIMIT 1) other
    LIMIT 1`

/** The kind and priority that come after these among the runs that are due. */
const readNextGroup = statement('read_next_group', {
  params: { queue: 'text', kind: 'text', priority: 'integer' },
  row: { queue: 'text', kind: 'text', priority: 'integer' },
  postgres: `SELECT t.queue, n.kind, n.priority FROM unnest($queue::text[], $kind::text[], $priority::integer[]) AS t(queue, kind, priority)
    CROSS JOIN LATERAL (${nextGroup('t.queue', 't.kind', 't.priority')}) n`,
  sqlite: `SELECT $queue AS queue, n.kind, n.priority FROM (${nextGroup('$queue', '$kind', '$priority')}) n`,
})

const oldest = (queue: string, kind: string, priority: string) => `(
      SELECT now_ms() - min(h.run_at) FROM (SELECT run_at FROM ichido.ready
        WHERE queue = ${queue} AND kind = ${kind} AND priority = ${priority} AND ${DUE}
        ORDER BY fair_tag, job_id LIMIT ${HEADS_MAX}) h)`

/** How long the oldest run has been due. Users take turns, so the oldest run of each user is among the first. */
const readOldest = statement('read_oldest', {
  params: { queue: 'text', kind: 'text', priority: 'integer' },
  row: { queue: 'text', oldest_ms: 'integer?' },
  postgres: `SELECT t.queue, ${oldest('t.queue', 't.kind', 't.priority')} AS oldest_ms
    FROM unnest($queue::text[], $kind::text[], $priority::integer[]) AS t(queue, kind, priority)`,
  sqlite: `SELECT $queue AS queue, ${oldest('$queue', '$kind', '$priority')} AS oldest_ms`,
})

/** The queues of all runs that workers hold, but not those that drain. */
const readHeldQueues = statement('read_held_queues', {
  params: {},
  row: { queue: 'text' },
  sql: `SELECT DISTINCT r.queue FROM ichido.held r WHERE NOT (${draining('r.worker_id')})`,
})

/** Answers with the queue if there is a worker for it. A worker is known for `online_ms` after it was seen. */
const readServed = statement('read_served', {
  params: { queue: 'text', online_ms: 'integer' },
  row: { queue: 'text' },
  postgres: `SELECT t.queue FROM unnest($queue::text[], $online_ms::bigint[]) AS t(queue, online_ms)
    WHERE EXISTS (SELECT 1 FROM ichido.workers w
      WHERE ${online('t.online_ms')} AND w.draining_since IS NULL AND (w.queues = 'null' OR w.queues::jsonb ? t.queue))`,
  sqlite: `SELECT $queue AS queue WHERE EXISTS (SELECT 1 FROM ichido.workers w
      WHERE ${online('$online_ms')} AND w.draining_since IS NULL AND ${SQLITE_QUEUE})`,
})

const readAwaited = statement('read_awaited', {
  params: { job_id: 'text', max: 'integer' },
  row: { name: 'text' },
  sql: `SELECT name FROM ichido.artifacts WHERE job_id = $job_id AND run_id IS NULL AND state = 'awaited' ORDER BY name LIMIT $max`,
})

/** Answers when the job is a dead letter of a redrive that runs. */
const readRedriveOf = statement('read_redrive_of', {
  params: { job_id: 'text' },
  row: { id: 'text', user_id: 'text' },
  sql: `SELECT o.id, d.user_id FROM ichido.dead_letters d JOIN ichido.operations o ON o.id = d.redrive_id
    WHERE d.job_id = $job_id AND o.state = 'running'`,
})

const NAMES_MAX = 20

/** The obstacles between a job and a worker. */
export function findObstacles(job: ListedJob, lastPoll: LastPoll | null, onlineMs: number): Command<WaitingFacts> {
  return command('find_obstacles', function* work(): Work<WaitingFacts> {
    const { job_id: jobId, queue, kind, state, run_at: runAtMs } = job
    const row = yield* exactlyOne(readObstacles, {
      queue,
      kind,
      online_ms: onlineMs,
      asked_by: lastPoll?.workerId ?? '',
    })
    const askedAgoMs = lastPoll === null || row.asked_by_draining ? null : lastPoll.agoMs
    const awaited = awaitsUploads(runAtMs) ? yield* query(readAwaited, { job_id: jobId, max: NAMES_MAX }) : []
    return {
      state,
      queue,
      kind,
      runAtMs,
      nowMs: row.now,
      awaited: awaited.map((artifact) => artifact.name),
      pausedAtMs: row.paused_at,
      maxConcurrent: row.max_concurrent,
      running: row.running,
      askedAgoMs,
      served: askedAgoMs !== null || row.online || row.at_work,
      draining: row.draining,
      redrive: yield* redriveOf(jobId),
    }
  })
}

/** How long the oldest run of a queue has been due, in a queue that is not paused. */
interface WaitingQueue {
  queue: string
  oldestMs: number
}

type Group = ParamsOf<typeof readNextGroup>

/** The most kinds and priorities of a queue that are looked at. */
const GROUPS_MAX = 200

/**
 * The queue with the oldest run first. It hops through the index, and reads only the first runs of each kind and priority: SQLite
 * takes seconds to read a million runs.
 */
export function findWaitingQueues(): Command<WaitingQueue[]> {
  return command('find_waiting_queues', function* work(): Work<WaitingQueue[]> {
    const groups: Group[] = []
    let last = (yield* query(readReadyQueues, {})).map(({ queue }): Group => ({ queue, kind: '', priority: 0 }))
    for (let n = 0; n < GROUPS_MAX && last.length > 0; n++) {
      last = yield* each(readNextGroup, last)
      groups.push(...last)
    }
    const oldest = new Map<string, number>()
    for (const { queue, oldest_ms } of yield* each(readOldest, groups)) {
      // Null if the last run of the group was leased between the two statements.
      oldest.set(queue, Math.max(oldest.get(queue) ?? 0, oldest_ms ?? 0))
    }
    return [...oldest].map(([queue, oldestMs]) => ({ queue, oldestMs })).sort((a, b) => b.oldestMs - a.oldestMs)
  })
}

/** The queues from which a worker holds a run, or that a worker serves that was seen lately. Draining workers do not count. */
export function findServedQueues(queues: readonly string[], onlineMs: number): Command<Set<string>> {
  return command('find_served_queues', function* work(): Work<Set<string>> {
    const asked = queues.map((queue) => ({ queue, online_ms: onlineMs }))
    const rows = [...(yield* query(readHeldQueues, {})), ...(yield* each(readServed, asked))]
    return new Set(rows.map((row) => row.queue))
  })
}

function* redriveOf(jobId: string): Work<WaitingFacts['redrive']> {
  const row = yield* one(readRedriveOf, { job_id: jobId })
  if (row === undefined) return null
  const { maxConcurrent, activeJobs, activeReservations } = yield* findQuota(row.user_id).work(false)
  return { redriveId: row.id, maxConcurrent, inUse: activeJobs + activeReservations }
}
