import { anyReady, DEFAULT_CONTINUATION_MS, EPOCH, ofPolicy, READY, RESUMED, timeOf } from '../leasing/leases.sql.ts'
import { queueLock } from '../leasing/queues.sql.ts'
import { MOVES_WRITTEN } from '../runs/runs.sql.ts'
import { statement } from '../statement.ts'
import { NEW_RUN, PLAIN_PARAMS, submitPostgres } from './submit.sql.ts'

/** Who holds a key or sets a limit is given this long: meanwhile nobody looks for those who wait. */
const PATIENCE_MS = 50

const QUEUE = '($queue::text[])[1]'
const WORKERS = '$worker_id::text[]'
const POLLS = '$poll_id::text[]'
const KINDS = '($kinds::text[])[1]'

/**
 * The locks of a lease, when nothing stands in the way of the submission itself; but none of them is waited for, since whoever
 * submits has nothing to do with the workers. Whether all is plain is then asked of a function whose snapshot is newer than the
 * locks. What has waited longer goes first.
 */
const GATE = `p AS MATERIALIZED (
      SELECT count(*) AS taken FROM (SELECT DISTINCT t.poll AS name FROM t, g) x
      WHERE NOT pg_try_advisory_xact_lock(hashtextextended(x.name, 0))),
    o AS MATERIALIZED (SELECT taken = 0 AND pg_try_advisory_xact_lock_shared(${queueLock(QUEUE)}) AS entered FROM p),
    l AS MATERIALIZED (
      SELECT revoked_at FROM ichido.workers
      WHERE worker_id = ANY(${WORKERS}) AND (SELECT entered FROM o) AND EXISTS (SELECT FROM g)
      ORDER BY worker_id FOR KEY SHARE SKIP LOCKED),
    h AS MATERIALIZED (
      SELECT o.entered AND l.revoked = 0
        AND l.locked = (SELECT count(*) FROM ichido.workers WHERE worker_id = ANY(${WORKERS}))
        AND ichido.lease_is_plain(${QUEUE}, ${WORKERS}, ${POLLS}) AND NOT CASE
          WHEN ${KINDS} IS NULL THEN EXISTS (SELECT 1 FROM ichido.runs WHERE queue = ${QUEUE} AND ${READY})
          WHEN ($from_priority::integer[])[1] IS NULL THEN ${anyReady(QUEUE, KINDS, '')}
          ELSE ${anyReady(QUEUE, KINDS, RESUMED)} END AS open
      FROM o, (SELECT count(*) AS locked, count(revoked_at) AS revoked FROM l) l)`

const time = (column: string, otherwise: string) => timeOf(column, ofPolicy('policy', column), QUEUE, otherwise)
const TTL = time('lease_ttl_seconds', 'lease_ttl_ms')
const ifStarted = (value: string) => `CASE WHEN start_id IS NOT NULL THEN ${value} END`

/** As if it had been inserted and then leased: version, attempt and event are those of the lease. */
const LEASED_RUNS = `INSERT INTO ichido.runs (${NEW_RUN}, assigned_worker_id, assigned_at, poll_id, lease_id, lease_ttl_ms,
        lease_expires_at, continuation_ms, start_id, started_at, leader_epoch)
      SELECT run_id, job_id, 1, true, queue, kind, user_id, 1, 0,
        CASE WHEN start_id IS NULL THEN 'ASSIGNED' ELSE 'RUNNING' END, 2, priority, run_at, fair_tag,
        created_at, 'NONE', 2, definition_id, worker_id, created_at, poll_id, run_id::text || '.' || token, ${TTL},
        created_at + ${TTL}, ${time('continuation_seconds', String(DEFAULT_CONTINUATION_MS))}, start_id,
        ${ifStarted('created_at')}, ${ifStarted(EPOCH)}
      FROM s
      RETURNING id, job_id, state, attempt, last_event_n, lease_ttl_ms, lease_expires_at, continuation_ms, leader_epoch`

/**
 * `poll`: the name of the poll. `kinds`: a JSON array of the kinds that the polls ask for; null: any. `from_priority` and
 * `from_fair_tag`: from where on the runs that are ready are looked at; null: from the beginning.
 */
const POLL_PARAMS = {
  worker_id: 'text',
  poll_id: 'text',
  token: 'text',
  lease_ttl_ms: 'integer',
  start_id: 'text?',
  poll: 'text',
  kinds: 'text?',
  from_priority: 'integer?',
  from_fair_tag: 'integer?',
} as const

/** The rows when it was done. */
export const SUBMITTED_AND_LEASED_ROW = {
  iso: 'text',
  run_id: 'text',
  lease_ttl_ms: 'integer',
  lease_expires_at: 'integer',
  continuation_ms: 'integer',
  leader_epoch: 'integer?',
} as const

/**
 * Plain submissions of one kind to one queue, in which nothing else waits, each leased by a poll that waits for it: one
 * commit and one wait for the disk for what would be two. Either all of it or nothing: then it answers with no row when the
 * submission is not plain, and else with one row of nulls.
 */
export const submitAndLease = statement('submit_and_lease', {
  params: { ...PLAIN_PARAMS, ...POLL_PARAMS },
  row: { iso: 'text?', run_id: 'text?' },
  postgres: submitPostgres({
    given: {
      arrays: `${WORKERS}, ${POLLS}, $token::text[], $lease_ttl_ms::bigint[], $start_id::text[], $poll::text[]`,
      columns: 'worker_id, poll_id, token, lease_ttl_ms, start_id, poll',
    },
    gate: { with: GATE, open: '(SELECT open FROM h)', patienceMs: PATIENCE_MS },
    runs: LEASED_RUNS,
    answer: `, m AS NOT MATERIALIZED (SELECT * FROM r), e AS (${MOVES_WRITTEN})
    SELECT x.iso, x.id AS run_id, x.lease_ttl_ms, x.lease_expires_at, x.continuation_ms, x.leader_epoch
    FROM g LEFT JOIN (SELECT a.iso, r.* FROM a, r) x ON true`,
  }),
  sqlite: [],
})
