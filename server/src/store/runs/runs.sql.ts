import { statement } from '../statement.ts'

// Columns are named one by one, here and in every statement: a node keeps its prepared statements while the next version
// adds a column, and PostgreSQL refuses a kept `*` whose meaning has changed.
export const MOVED = 'id, job_id, run_no, queue, kind, user_id, state, attempt, retry_count, last_event_n'
export const MOVED_R = MOVED.replaceAll(/\w+/g, 'r.$&')
export const FACTS = `id, job_id, state, version, run_at, attempt, retry_count, assigned_worker_id, lease_id, start_id, leader_epoch,
  cancel_requested_at, outcome_hash`
const FOLLOWED = `r.id AS run_id, r.queue, r.retry_count, n.id AS next_id, n.run_at AS next_run_at,
    n.retry_count AS next_retry_count, d.retry_count AS dead_retry_count
  FROM ichido.runs r LEFT JOIN ichido.runs n ON n.job_id = r.job_id AND n.run_no = r.run_no + 1
    LEFT JOIN ichido.dead_letters d ON d.job_id = r.job_id AND d.run_id = r.id`

const DUE = `id, queue, user_id, run_at, priority FROM ichido.runs
    WHERE state = 'PENDING' AND fair_tag IS NULL AND run_at <= (SELECT now_ms())`

/**
 * Writes what happened to the runs that `m` moved, in the statement that moves them. Without a domain: it is the job's, and
 * who reads events takes it from there. Looked up here, it cost 6 µs a move.
 */
export const MOVES_WRITTEN = `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT m.job_id, m.last_event_n, 'run', m.last_event_n, '',
        '{"state":"' || m.state || '","attempt":' || m.attempt || '}', (SELECT now_ms()) FROM m`

/** Of a statement that may be a transaction by itself, whose commit waits for the disk whatever its session says. */
export const DURABLY_NOW = `(SELECT now_ms() FROM set_config('synchronous_commit', 'on', true))`

/** The same for the run $1 on SQLite, if the statement before it changed one. */
const MOVE_WRITTEN = `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT job_id, last_event_n, 'run', last_event_n, '', '{"state":"' || state || '","attempt":' || attempt || '}', now_ms()
      FROM ichido.runs WHERE id = $1 AND changes() = 1`
const moved = (columns: string) => `SELECT ${columns} FROM ichido.runs WHERE id = $1 AND changes() = 1`

// `state || ''` keeps PostgreSQL on the primary key: given the bare column it scans the partial index of live runs.
const GUARD = 'r.assigned_worker_id = t.worker_id AND r.lease_id = t.lease_id'
const HELD = 'id = $1 AND assigned_worker_id = $2 AND lease_id = $3'

/**
 * Sorts the items by their runs: the UPDATE that takes them one after the other locks the runs in this order, so that
 * batches of two nodes never deadlock. Its joins are nested loops, by the settings of every transaction.
 */
const SORTED = 'ORDER BY t.run_id'

const STARTED = 'id, job_id, state, version, attempt, leader_epoch, last_event_n, kind, run_at, started_at'

/** Takes run, worker, lease, version (or null), start id. Guards all of them and ASSIGNED. */
export const startRuns = statement('start_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[])
        AS t(run_id, worker_id, lease_id, version, start_id) ${SORTED}),
    m AS (UPDATE ichido.runs r SET state = 'RUNNING', version = r.version + 1, start_id = t.start_id, started_at = now_ms(),
        leader_epoch = (SELECT epoch FROM ichido.leadership WHERE id = 1), last_event_n = r.last_event_n + 1
      FROM t WHERE r.id = t.run_id AND r.state || '' = 'ASSIGNED' AND ${GUARD} AND (t.version IS NULL OR t.version = r.version)
      RETURNING ${STARTED.replaceAll(/\w+/g, 'r.$&')}),
    e AS (${MOVES_WRITTEN})
    SELECT ${STARTED} FROM m`,
  sqlite: [
    `UPDATE ichido.runs SET state = 'RUNNING', version = version + 1, start_id = $5, started_at = now_ms(),
      leader_epoch = (SELECT epoch FROM ichido.leadership WHERE id = 1), last_event_n = last_event_n + 1
    WHERE ${HELD} AND state = 'ASSIGNED' AND ($4 IS NULL OR $4 = version)`,
    MOVE_WRITTEN,
    moved(STARTED),
  ],
})

/** How long a run has taken. */
const TIMES = 'started_at, finished_at'
const TIMES_R = TIMES.replaceAll(/\w+/g, 'r.$&')

/** Whether there is a queue that a run which ended may have made room in. */
const LIMITED = 'EXISTS (SELECT 1 FROM ichido.queues WHERE max_concurrent IS NOT NULL) AS limited'
const ENDED = `id, job_id, queue, kind, user_id, state, retry_count, ${TIMES}, ${LIMITED}`

const RESULT = 'run_id, job_id, result, summary_text, freqs_csv, meta, cost_micros, created_at'

/**
 * Takes run, worker, lease, version (or null), epoch (or null), end state, outcome hash, error (or null), and of a finish
 * result, summary, freqs, meta, cost. Guards RUNNING, holder, version and the epoch that start recorded. A wish to cancel
 * turns any end into CANCELED, and then there is no result; nor is there one of which nothing is to be kept.
 */
export const finishRuns = statement('finish_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::bigint[], $6::text[], $7::text[],
        $8::text[], $9::text[], $10::text[], $11::text[], $12::text[], $13::bigint[])
        AS t(run_id, worker_id, lease_id, version, epoch, state, outcome_hash, error, result, summary_text, freqs_csv, meta,
          cost_micros) ${SORTED}),
    m AS (UPDATE ichido.runs r SET state = CASE WHEN r.cancel_requested_at IS NULL THEN t.state ELSE 'CANCELED' END,
        version = r.version + 1, finished_at = ${DURABLY_NOW}, outcome_hash = t.outcome_hash, error = t.error,
        continuation_state = 'NONE', last_event_n = r.last_event_n + 1
      FROM t WHERE r.id = t.run_id AND r.state || '' = 'RUNNING' AND ${GUARD}
        AND (t.version IS NULL OR t.version = r.version) AND (t.epoch IS NULL OR t.epoch = r.leader_epoch)
      RETURNING ${MOVED_R}, ${TIMES_R}, t.result, t.summary_text, t.freqs_csv, t.meta, t.cost_micros),
    e AS (${MOVES_WRITTEN}),
    s AS (INSERT INTO ichido.results (${RESULT})
      SELECT id, job_id, result, summary_text, freqs_csv, meta, cost_micros, (SELECT now_ms()) FROM m
      WHERE state = 'SUCCEEDED' AND coalesce(result, summary_text, freqs_csv, meta, cost_micros::text) IS NOT NULL)
    SELECT ${ENDED} FROM m`,
  sqlite: [
    `INSERT INTO ichido.results (${RESULT})
      SELECT id, job_id, $9, $10, $11, $12, $13, now_ms() FROM ichido.runs
      WHERE $6 = 'SUCCEEDED' AND coalesce($9, $10, $11, $12, $13) IS NOT NULL AND cancel_requested_at IS NULL
        AND ${ends('$4', '$5')}`,
    `UPDATE ichido.runs SET state = CASE WHEN cancel_requested_at IS NULL THEN $6 ELSE 'CANCELED' END,
      version = version + 1, finished_at = now_ms(), outcome_hash = $7, error = $8,
      continuation_state = 'NONE', last_event_n = last_event_n + 1
    WHERE ${ends('$4', '$5')}`,
    MOVE_WRITTEN,
    moved(ENDED),
  ],
})

/** The same as a transaction by itself. */
export const finishPlain = statement('finish_plain', { postgres: finishRuns.postgres, sqlite: [] })

function ends(version: string, epoch: string): string {
  return `${HELD} AND state = 'RUNNING' AND (${version} IS NULL OR ${version} = version)
      AND (${epoch} IS NULL OR ${epoch} = leader_epoch)`
}

/**
 * Takes run, worker, lease, and the error and outcome hash of a run that has started. Guards holder, ASSIGNED or RUNNING:
 * the former is anybody's again, the latter ends.
 */
export const releaseRuns = statement('release_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::text[], $5::text[])
        AS t(run_id, worker_id, lease_id, error, outcome_hash) ${SORTED}),
    m AS (UPDATE ichido.runs r SET ${released('r.', 't.error', 't.outcome_hash')}
      FROM t WHERE r.id = t.run_id AND r.state || '' IN ('ASSIGNED', 'RUNNING') AND ${GUARD} RETURNING ${MOVED_R}),
    e AS (${MOVES_WRITTEN})
    SELECT ${MOVED} FROM m`,
  sqlite: [
    `UPDATE ichido.runs SET ${released('', '$4', '$5')} WHERE ${HELD} AND state IN ('ASSIGNED', 'RUNNING')`,
    MOVE_WRITTEN,
    moved(MOVED),
  ],
})

function released(r: string, error: string, outcomeHash: string): string {
  const ifRunning = (value: string) => `CASE WHEN ${r}state = 'RUNNING' THEN ${value} END`
  return `state = CASE WHEN ${r}state = 'ASSIGNED' THEN 'ORPHANED' WHEN ${r}cancel_requested_at IS NULL THEN 'FAILED'
        ELSE 'CANCELED' END,
      version = ${r}version + 1, finished_at = ${ifRunning('now_ms()')}, error = ${ifRunning(error)},
      outcome_hash = ${ifRunning(outcomeHash)}, continuation_state = 'NONE', last_event_n = ${r}last_event_n + 1`
}

/**
 * Takes run, worker, lease, and the lease time of runs that do not know theirs. No transition: the version stays, or a start
 * that is under way would miss.
 */
export const heartbeatRuns = statement('heartbeat_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS t(run_id, worker_id, lease_id, ttl_ms)
      ${SORTED})
    UPDATE ichido.runs r SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = now_ms() + coalesce(r.lease_ttl_ms, t.ttl_ms)
    FROM t WHERE r.id = t.run_id AND r.state || '' IN ('ASSIGNED', 'RUNNING') AND ${GUARD}
    RETURNING r.lease_id, r.assigned_worker_id AS worker_id, r.lease_expires_at, r.cancel_requested_at,
      coalesce(r.lease_ttl_ms, t.ttl_ms) AS ttl_ms`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = now_ms() + coalesce(lease_ttl_ms, $4)
    WHERE ${HELD} AND state IN ('ASSIGNED', 'RUNNING')
    RETURNING lease_id, assigned_worker_id AS worker_id, lease_expires_at, cancel_requested_at,
      coalesce(lease_ttl_ms, $4) AS ttl_ms`,
})

/** Takes run ids; answers with what `decide()` needs to say why a write changed nothing. */
export const readFacts = statement('read_facts', {
  postgres: `SELECT ${FACTS} FROM ichido.runs WHERE id = ANY($1::uuid[])`,
  sqlite: `SELECT ${FACTS} FROM ichido.runs WHERE id = $1`,
})

/** Takes a run. */
export const readOwner = statement('read_owner', 'SELECT user_id FROM ichido.runs WHERE id = $1')

/** Takes run ids that failed before; answers with what came after each. */
export const readFollowed = statement('read_followed', {
  postgres: `SELECT ${FOLLOWED} WHERE r.id = ANY($1::uuid[])`,
  sqlite: `SELECT ${FOLLOWED} WHERE r.id = $1`,
})

/** Takes run ids that ended here and now. */
export const supersedeRuns = statement('supersede_runs', {
  postgres: 'UPDATE ichido.runs SET latest = false WHERE id = ANY($1::uuid[]) AND latest',
  sqlite: 'UPDATE ichido.runs SET latest = false WHERE id = $1 AND latest',
})

/** Takes the ended run, the new run, its delay in ms and its retry count. A second one for the same run cannot go in. */
export const insertNextRuns = statement('insert_next_runs', {
  postgres: `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
      priority, run_at, fair_tag, created_at, continuation_state, last_event_n, definition_id)
    SELECT t.next_id, r.job_id, r.run_no + 1, true, r.queue, r.kind, r.user_id, r.attempt, t.retry_count, 'PENDING', 1,
      r.priority, now_ms() + t.delay_ms, CASE WHEN t.delay_ms = 0 THEN coalesce(r.fair_tag, 0) END, now_ms(), 'NONE',
      r.last_event_n + 1, r.definition_id
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::integer[]) AS t(run_id, next_id, delay_ms, retry_count)
    JOIN ichido.runs r ON r.id = t.run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind, queue, run_at`,
  sqlite: `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
      priority, run_at, fair_tag, created_at, continuation_state, last_event_n, definition_id)
    SELECT $2, job_id, run_no + 1, true, queue, kind, user_id, attempt, $4, 'PENDING', 1,
      priority, now_ms() + $3, CASE WHEN $3 = 0 THEN coalesce(fair_tag, 0) END, now_ms(), 'NONE', last_event_n + 1,
      definition_id
    FROM ichido.runs WHERE id = $1
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind, queue, run_at`,
})

const DEAD_LETTER = 'job_id, run_id, queue, kind, user_id, error_code, error_message, retry_count, dead_at'

/** Takes job, run, queue, kind, user, error code, error message, retry count. */
export const insertDeadLetters = statement('insert_dead_letters', {
  postgres: `INSERT INTO ichido.dead_letters (${DEAD_LETTER})
    SELECT t.*, now_ms() FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
      $8::integer[]) t`,
  sqlite: `INSERT INTO ichido.dead_letters (${DEAD_LETTER}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms())`,
})

/** Takes job, n, data: what happened to a run, written in the transaction that moves it. */
export const insertLifecycle = statement('insert_lifecycle', {
  postgres: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT t.job_id, t.n, 'run', t.n, '', t.data, now_ms()
    FROM unnest($1::uuid[], $2::bigint[], $3::text[]) AS t(job_id, n, data)`,
  sqlite: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    VALUES ($1, $2, 'run', $2, '', $3, now_ms())`,
})

const CANCELABLE = 'state, cancel_requested_at, assigned_worker_id'

/** Takes a job. */
export const lockLatestRun = statement('lock_latest_run', {
  postgres: `SELECT ${CANCELABLE} FROM ichido.runs WHERE job_id = $1 AND latest FOR NO KEY UPDATE`,
  sqlite: `SELECT ${CANCELABLE} FROM ichido.runs WHERE job_id = $1 AND latest`,
})

/** Takes a job. Guards: its latest run waits, or is assigned and has not started. */
export const cancelWaiting = statement(
  'cancel_waiting',
  `UPDATE ichido.runs SET state = 'CANCELED', version = version + 1, finished_at = now_ms(), last_event_n = last_event_n + 1
    WHERE job_id = $1 AND latest AND state IN ('PENDING', 'ASSIGNED', 'ORPHANED') RETURNING ${MOVED}`,
)

/** Takes a job. A RUNNING run is asked to stop; its worker, or the leader after the deadline, ends it. */
export const requestCancel = statement(
  'request_cancel',
  `UPDATE ichido.runs SET cancel_requested_at = coalesce(cancel_requested_at, now_ms())
    WHERE job_id = $1 AND latest AND state = 'RUNNING' RETURNING id`,
)

/** Takes a worker and a maximum: the leases of its runs that are to stop. */
export const readCancels = statement(
  'read_cancels',
  `SELECT lease_id FROM ichido.runs WHERE assigned_worker_id = $1 AND state IN ('ASSIGNED', 'RUNNING')
      AND cancel_requested_at IS NOT NULL AND lease_id IS NOT NULL ORDER BY id LIMIT $2`,
)

/**
 * Takes a maximum: delayed runs whose time has come. The time is a subquery: as a bare function it is asked for every row,
 * and the index is read to its end, past all that is not due.
 */
export const lockDue = statement('lock_due', {
  postgres: `SELECT ${DUE} ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED`,
  sqlite: `SELECT ${DUE} ORDER BY run_at LIMIT $1`,
})

/** Takes run, tag. With a tag it is in the index that leases read. */
export const promoteRuns = statement('promote_runs', {
  postgres: `UPDATE ichido.runs r SET fair_tag = t.tag FROM unnest($1::uuid[], $2::bigint[]) AS t(id, tag) WHERE r.id = t.id`,
  sqlite: 'UPDATE ichido.runs SET fair_tag = $2 WHERE id = $1',
})

/** When the next delayed run is due, in ms from now; null when none waits. */
export const nextDue = statement(
  'next_due',
  `SELECT min(run_at) - now_ms() AS in_ms FROM ichido.runs WHERE state = 'PENDING' AND fair_tag IS NULL`,
)
