import type { Store } from '../../store/port.ts'
import { text } from './rows.ts'
import { sql } from './store.ts'

export interface Bulk {
  count: number
  state: 'PENDING' | 'RUNNING' | 'SUCCEEDED'
  queue?: string
  kind?: string
  userId?: string
  workerId?: string
  /** Delayed runs are outside the queue and due this long from now. */
  delayMs?: number
  keyed?: boolean
}

/** A statement has a timeout of ten seconds. */
const STATEMENT_MAX = 10_000

/**
 * Inserts many jobs on PostgreSQL with creation times spread over the last hour, so that several calls mix. Returns
 * their runs. The token of every lease is `t`.
 */
export async function insertBulk(store: Store, bulk: Bulk): Promise<{ runId: string; jobId: string }[]> {
  const runs: { runId: string; jobId: string }[] = []
  while (runs.length < bulk.count) {
    const count = Math.min(STATEMENT_MAX, bulk.count - runs.length)
    for (const run of await insertSome(store, { ...bulk, count })) runs.push(run)
  }
  return runs
}

async function insertSome(store: Store, bulk: Bulk): Promise<{ runId: string; jobId: string }[]> {
  const { count, state, queue = 'bulk', kind = 'work', userId = 'bulk', workerId = 'bulk', delayMs = 0 } = bulk
  const leased = state !== 'PENDING'
  const values = { queue, kind, userId, workerId, delayMs, state, leased }
  const rows = await sql(
    store,
    `WITH s AS MATERIALIZED (SELECT i, now_ms() AS now, now_ms() - (random() * 3600000)::int AS at
        FROM generate_series(1, ${count}) AS s(i)),
      t AS MATERIALIZED (SELECT ${UUID} AS job_id, gen_random_uuid() AS run_id, i, now, at FROM s),
      j AS (INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, estimated_cost_micros, created_at)
        SELECT job_id, $1, $2, $3, '{"some":"payload that is not so short, as payloads are"}', '{}', 0, 0, at FROM t),
      k AS (INSERT INTO ichido.idempotency_keys SELECT 'key-' || job_id, $3, 'submit', 'hash', 1, job_id, 201, '{}', now,
          now + i FROM t WHERE $4::boolean)
      INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version, priority,
        run_at, fair_tag, created_at, assigned_worker_id, lease_id, lease_expires_at, leader_epoch, start_id, started_at,
        finished_at, continuation_state, last_event_n)
      SELECT run_id, job_id, 1, true, $2, $1, $3, 1, 0, $5, 1, i % 3, now + $6, CASE WHEN $6 = 0 THEN now + i END, now,
        CASE WHEN $7::boolean THEN $8 END, CASE WHEN $7 THEN run_id || '.t' END, CASE WHEN $7 THEN now + 60000 END,
        CASE WHEN $7 THEN 1 END, CASE WHEN $7 THEN 's' END, CASE WHEN $7 THEN now END,
        CASE WHEN $5 = 'SUCCEEDED' THEN now END, 'NONE', 1 FROM t
      RETURNING id, job_id`,
    values.kind,
    values.queue,
    values.userId,
    bulk.keyed ?? false,
    values.state,
    values.delayMs,
    values.leased,
    values.workerId,
  )
  return rows.map((row) => ({ runId: text(row, 'id'), jobId: text(row, 'job_id') }))
}

/** A UUIDv7 of the row's creation time. */
const UUID = `(lpad(to_hex(at), 12, '0') || '7' || lpad(to_hex(i % 4096), 3, '0') || '8' || substr(md5(random()::text), 1, 15))::uuid`
