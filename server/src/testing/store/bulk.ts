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
 * them. The token of every lease is `t`.
 */
export async function insertBulk(store: Store, bulk: Bulk): Promise<{ jobId: string }[]> {
  const jobs: { jobId: string }[] = []
  while (jobs.length < bulk.count) {
    const count = Math.min(STATEMENT_MAX, bulk.count - jobs.length)
    for (const job of await insertSome(store, { ...bulk, count })) jobs.push(job)
  }
  return jobs
}

const LIVE =
  'job_id, run_id, run_no, queue, kind, user_id, attempt, retry_count, version, priority, run_at, fair_tag, created_at, n'
const LIVE_VALUES = 'job_id, job_id, 1, $2, $1, $3, 1, 0, 1, i % 3, now + $5, CASE WHEN $5 = 0 THEN now + i END, now, 1'

const ROOMS: Record<Bulk['state'], string> = {
  PENDING: `INSERT INTO ichido.ready (${LIVE}, bytes) SELECT ${LIVE_VALUES}, 52 FROM t WHERE $6 <> ''`,
  RUNNING: `INSERT INTO ichido.held (${LIVE}, worker_id, token, assigned_at, lease_expires_at, lease_ttl_ms, continuation_ms,
      leader_epoch, start_id, started_at)
    SELECT ${LIVE_VALUES}, $6, 't', now, now + 60000, 60000, 60000, 1, 's', now FROM t`,
  SUCCEEDED: `INSERT INTO ichido.ended (job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, fair_tag,
      created_at, worker_id, token, assigned_at, start_id, started_at, leader_epoch, lease_expires_at, finished_at, n)
    SELECT job_id, 1, job_id, $3, true, 'SUCCEEDED', 1, 0, 1, now + $5, now + i, now, $6, 't', now, 's', now, 1, now + 60000, now, 1
    FROM t`,
}

async function insertSome(store: Store, bulk: Bulk): Promise<{ jobId: string }[]> {
  const { count, state, queue = 'bulk', kind = 'work', userId = 'bulk', workerId = 'bulk', delayMs = 0 } = bulk
  const rows = await sql(
    store,
    `WITH s AS MATERIALIZED (SELECT i, now_ms() AS now, now_ms() - (random() * 3600000)::int AS at
        FROM generate_series(1, ${count}) AS s(i)),
      t AS MATERIALIZED (SELECT ${UUID} AS job_id, i, now, at FROM s),
      j AS (INSERT INTO ichido.jobs (id, kind, queue, user_id, payload, policy, priority, estimated_cost_micros, created_at)
        SELECT job_id, $1, $2, $3, '{"some":"payload that is not so short, as payloads are"}', '{}', 0, 0, at FROM t),
      k AS (INSERT INTO ichido.idempotency_keys SELECT 'key-' || job_id, $3, 'submit', 'hash', 1, job_id, 201, '{}', now,
          now + i FROM t WHERE $4::boolean)
      ${ROOMS[state]} RETURNING job_id`,
    kind,
    queue,
    userId,
    bulk.keyed ?? false,
    delayMs,
    workerId,
  )
  return rows.map((row) => ({ jobId: text(row, 'job_id') }))
}

/** A UUIDv7 of the row's creation time. */
const UUID = `(lpad(to_hex(at), 12, '0') || '7' || lpad(to_hex(i % 4096), 3, '0') || '8' || substr(md5(random()::text), 1, 15))::uuid`
