import { anyReady, DEFAULT_CONTINUATION_MS, EPOCH, ofPolicy, READY, timeOf } from '../leasing/leases.sql.ts'
import { queueLock } from '../leasing/queues.sql.ts'
import { MOVES_WRITTEN } from '../runs/runs.sql.ts'
import { statement } from '../statement.ts'
import { NEW_RUN, submitPostgres } from './submit.sql.ts'

/** Who holds a key or sets a limit is given this long: meanwhile nobody looks for those who wait. */
const PATIENCE_MS = 50

const QUEUE = '($4::text[])[1]'
const WORKERS = '$16::text[]'
const POLLS = '$17::text[]'
const KINDS = '($22::text[])[1]'
const FROM = 'AND priority = ($23::integer[])[1] AND fair_tag >= ($24::bigint[])[1]'

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
          WHEN ($23::integer[])[1] IS NULL THEN ${anyReady(QUEUE, KINDS, '')}
          ELSE ${anyReady(QUEUE, KINDS, FROM)} END AS open
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
 * Plain submissions of one kind to one queue, in which nothing else waits, each leased by a poll that waits for it: one
 * commit and one wait for the disk for what would be two. Either all of it or nothing: then it answers with no row when the
 * submission is not plain, and else with one of nulls.
 * One row a job: 1–15 as for a plain submission, 16 worker, 17 poll, 18 token, 19 lease time, 20 start id, 21 the poll's name,
 * 22 the kinds that the polls ask for (a JSON array; null: any), 23 and 24 the priority and the tag from which on what is
 * ready is looked for (null: from the beginning).
 */
export const submitAndLease = statement('submit_and_lease', {
  postgres: submitPostgres({
    given: {
      arrays: `${WORKERS}, ${POLLS}, $18::text[], $19::bigint[], $20::text[], $21::text[]`,
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
