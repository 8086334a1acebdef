import { statement } from '../statement.ts'

const LEASED = `r.id AS run_id, r.job_id, r.run_no, r.attempt, r.retry_count, r.state, r.version, r.lease_id,
  r.lease_expires_at, r.leader_epoch, r.queue, r.kind, r.user_id, r.priority, r.fair_tag, r.last_event_n,
  j.payload, j.policy, j.traceparent`

// Columns are named one by one, here and in every statement: a node keeps its prepared statements while the next version
// adds a column, and PostgreSQL refuses a kept `*` whose meaning has changed.
export const MOVED = 'id, job_id, run_no, queue, kind, user_id, state, attempt, retry_count, last_event_n'
export const MOVED_R = MOVED.replaceAll(/\w+/g, 'r.$&')
const FACTS = `id, job_id, state, version, run_at, attempt, assigned_worker_id, lease_id, start_id, leader_epoch,
  cancel_requested_at, outcome_hash`

/**
 * Takes queue, kinds (a JSON array), how many, worker, poll, token, lease time, and the start id when the runs are to be
 * started at once. Guards: PENDING or ORPHANED, due, nobody else's. A lease_id is `run.token`: it leads to its run
 * without an index on a column that changes with every lease.
 */
export const leaseRuns = statement('lease_runs', {
  postgres: `WITH c AS MATERIALIZED (
      SELECT r.id FROM json_array_elements_text($2::json) AS k(kind) CROSS JOIN LATERAL (
        SELECT id, priority, fair_tag FROM ichido.runs
        WHERE queue = $1 AND kind = k.kind AND state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL
        ORDER BY priority DESC, fair_tag, id LIMIT $3 FOR UPDATE SKIP LOCKED) r
      ORDER BY r.priority DESC, r.fair_tag, r.id LIMIT $3)
    UPDATE ichido.runs r SET version = r.version + 1, attempt = r.attempt + 1, assigned_worker_id = $4, poll_id = $5,
      assigned_at = now_ms(), lease_id = r.id::text || '.' || $6::text,
      lease_expires_at = now_ms() + coalesce((j.policy::json ->> 'lease_ttl_seconds')::bigint * 1000, $7::bigint),
      state = CASE WHEN $8::text IS NULL THEN 'ASSIGNED' ELSE 'RUNNING' END,
      start_id = $8, started_at = CASE WHEN $8::text IS NULL THEN NULL ELSE now_ms() END,
      leader_epoch = CASE WHEN $8::text IS NULL THEN NULL ELSE (SELECT epoch FROM ichido.leadership WHERE id = 1) END,
      last_event_n = r.last_event_n + 1
    FROM c, ichido.jobs j WHERE r.id = c.id AND j.id = r.job_id
    RETURNING ${LEASED}`,
  sqlite: [
    `UPDATE ichido.runs SET version = version + 1, attempt = attempt + 1, assigned_worker_id = $4, poll_id = $5,
      assigned_at = now_ms(), lease_id = id || '.' || $6,
      lease_expires_at = now_ms() + coalesce(
        (SELECT json_extract(policy, '$.lease_ttl_seconds') * 1000 FROM ichido.jobs WHERE jobs.id = runs.job_id), $7),
      state = CASE WHEN $8 IS NULL THEN 'ASSIGNED' ELSE 'RUNNING' END,
      start_id = $8, started_at = CASE WHEN $8 IS NULL THEN NULL ELSE now_ms() END,
      leader_epoch = CASE WHEN $8 IS NULL THEN NULL ELSE (SELECT epoch FROM ichido.leadership WHERE id = 1) END,
      last_event_n = last_event_n + 1
    WHERE id IN (
      SELECT id FROM ichido.runs
      WHERE queue = $1 AND kind IN (SELECT value FROM json_each($2)) AND state IN ('PENDING', 'ORPHANED')
        AND fair_tag IS NOT NULL
      ORDER BY priority DESC, fair_tag, id LIMIT $3)`,
    `SELECT ${LEASED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
      WHERE r.assigned_worker_id = $4 AND r.poll_id = $5 AND r.state IN ('ASSIGNED', 'RUNNING')`,
  ],
})

/**
 * Takes names of polls, sorted. A poll may be asked again before its first answer is committed, by a node that lost the
 * connection or on another one: it then waits here, or it would lease other runs and leave the first ones to nobody.
 */
export const lockPolls = statement('lock_polls', {
  postgres: `SELECT pg_advisory_xact_lock(hashtextextended(name, 0)) FROM unnest($1::text[]) AS t(name)`,
  sqlite: 'SELECT $1',
})

/** Takes worker, poll. A poll whose answer got lost is answered again with the same leases. */
export const leasedByPoll = statement(
  'leased_by_poll',
  `SELECT ${LEASED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.assigned_worker_id = $1 AND r.poll_id = $2 AND r.state IN ('ASSIGNED', 'RUNNING')
    ORDER BY r.priority DESC, r.fair_tag, r.id`,
)

// `state || ''` keeps PostgreSQL on the primary key: given the bare column it scans the partial index of live runs.
const GUARD = 'r.assigned_worker_id = t.worker_id AND r.lease_id = t.lease_id'

/** Joins the items to their runs and locks these in the order of their ids, so that batches of two nodes never deadlock. */
const LOCKED = 'JOIN ichido.runs l ON l.id = t.run_id ORDER BY l.id FOR UPDATE OF l'

/** Takes run, worker, lease, version (or null), start id. Guards all of them and ASSIGNED. */
export const startRuns = statement('start_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::text[])
        AS t(run_id, worker_id, lease_id, version, start_id) ${LOCKED})
    UPDATE ichido.runs r SET state = 'RUNNING', version = r.version + 1, start_id = t.start_id, started_at = now_ms(),
      leader_epoch = (SELECT epoch FROM ichido.leadership WHERE id = 1), last_event_n = r.last_event_n + 1
    FROM t WHERE r.id = t.run_id AND r.state || '' = 'ASSIGNED' AND ${GUARD} AND (t.version IS NULL OR t.version = r.version)
    RETURNING r.id AS run_id, r.job_id, r.state, r.version, r.attempt, r.leader_epoch, r.last_event_n, r.kind`,
  sqlite: `UPDATE ichido.runs SET state = 'RUNNING', version = version + 1, start_id = $5, started_at = now_ms(),
      leader_epoch = (SELECT epoch FROM ichido.leadership WHERE id = 1), last_event_n = last_event_n + 1
    WHERE id = $1 AND state = 'ASSIGNED' AND assigned_worker_id = $2 AND lease_id = $3 AND ($4 IS NULL OR $4 = version)
    RETURNING id AS run_id, job_id, state, version, attempt, leader_epoch, last_event_n, kind`,
})

/**
 * Takes run, worker, lease, version (or null), epoch (or null), end state, outcome hash, error (or null).
 * Guards RUNNING, holder, version and the epoch that start recorded. A wish to cancel turns any end into CANCELED.
 */
export const endRuns = statement('end_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::integer[], $5::bigint[], $6::text[], $7::text[],
        $8::text[]) AS t(run_id, worker_id, lease_id, version, epoch, state, outcome_hash, error) ${LOCKED})
    UPDATE ichido.runs r SET state = CASE WHEN r.cancel_requested_at IS NULL THEN t.state ELSE 'CANCELED' END,
      version = r.version + 1, finished_at = now_ms(), outcome_hash = t.outcome_hash, error = t.error,
      continuation_state = 'NONE', last_event_n = r.last_event_n + 1
    FROM t WHERE r.id = t.run_id AND r.state || '' = 'RUNNING' AND ${GUARD}
      AND (t.version IS NULL OR t.version = r.version) AND (t.epoch IS NULL OR t.epoch = r.leader_epoch)
    RETURNING ${MOVED_R}`,
  sqlite: `UPDATE ichido.runs SET state = CASE WHEN cancel_requested_at IS NULL THEN $6 ELSE 'CANCELED' END,
      version = version + 1, finished_at = now_ms(), outcome_hash = $7, error = $8,
      continuation_state = 'NONE', last_event_n = last_event_n + 1
    WHERE id = $1 AND state = 'RUNNING' AND assigned_worker_id = $2 AND lease_id = $3
      AND ($4 IS NULL OR $4 = version) AND ($5 IS NULL OR $5 = leader_epoch)
    RETURNING ${MOVED}`,
})

/**
 * Takes run, worker, lease, and the lease time of jobs that do not set their own. No transition: the version stays, or a
 * start that is under way would miss.
 */
export const heartbeatRuns = statement('heartbeat_runs', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[])
        AS t(run_id, worker_id, lease_id, ttl_ms) ${LOCKED})
    UPDATE ichido.runs r SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = now_ms() + coalesce((SELECT (j.policy::json ->> 'lease_ttl_seconds')::bigint * 1000
        FROM ichido.jobs j WHERE j.id = r.job_id), t.ttl_ms)
    FROM t WHERE r.id = t.run_id AND r.state || '' IN ('ASSIGNED', 'RUNNING') AND ${GUARD}
    RETURNING r.lease_id, r.assigned_worker_id AS worker_id, r.lease_expires_at, r.cancel_requested_at`,
  sqlite: `UPDATE ichido.runs SET continuation_state = 'NONE', continuation_check_deadline_at = NULL,
      lease_expires_at = now_ms() + coalesce(
        (SELECT json_extract(policy, '$.lease_ttl_seconds') * 1000 FROM ichido.jobs WHERE jobs.id = runs.job_id), $4)
    WHERE id = $1 AND state IN ('ASSIGNED', 'RUNNING') AND assigned_worker_id = $2 AND lease_id = $3
    RETURNING lease_id, assigned_worker_id AS worker_id, lease_expires_at, cancel_requested_at`,
})

/** Takes run ids; answers with what `decide()` needs to say why a write changed nothing. */
export const readFacts = statement('read_facts', {
  postgres: `SELECT ${FACTS} FROM ichido.runs WHERE id = ANY($1::uuid[])`,
  sqlite: `SELECT ${FACTS} FROM ichido.runs WHERE id = $1`,
})

/** Takes run ids that ended here and now. */
export const supersedeRuns = statement('supersede_runs', {
  postgres: 'UPDATE ichido.runs SET latest = false WHERE id = ANY($1::uuid[]) AND latest',
  sqlite: 'UPDATE ichido.runs SET latest = false WHERE id = $1 AND latest',
})

/** Takes the ended run, the new run, its delay in ms and its retry count. A second one for the same run cannot go in. */
export const insertNextRuns = statement('insert_next_runs', {
  postgres: `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
      priority, run_at, fair_tag, created_at, continuation_state, last_event_n)
    SELECT t.next_id, r.job_id, r.run_no + 1, true, r.queue, r.kind, r.user_id, r.attempt, t.retry_count, 'PENDING', 1,
      r.priority, now_ms() + t.delay_ms, CASE WHEN t.delay_ms = 0 THEN now_ms() END, now_ms(), 'NONE', r.last_event_n + 1
    FROM unnest($1::uuid[], $2::uuid[], $3::bigint[], $4::integer[]) AS t(run_id, next_id, delay_ms, retry_count)
    JOIN ichido.runs r ON r.id = t.run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind, queue, run_at`,
  sqlite: `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
      priority, run_at, fair_tag, created_at, continuation_state, last_event_n)
    SELECT $2, job_id, run_no + 1, true, queue, kind, user_id, attempt, $4, 'PENDING', 1,
      priority, now_ms() + $3, CASE WHEN $3 = 0 THEN now_ms() END, now_ms(), 'NONE', last_event_n + 1
    FROM ichido.runs WHERE id = $1
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind, queue, run_at`,
})

const RESULT = 'run_id, job_id, result, summary_text, freqs_csv, meta, cost_micros, created_at'

/** Takes run, job, result, summary, freqs, meta, cost. */
export const insertResults = statement('insert_results', {
  postgres: `INSERT INTO ichido.results (${RESULT})
    SELECT t.*, now_ms() FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::bigint[]) t`,
  sqlite: `INSERT INTO ichido.results (${RESULT}) VALUES ($1, $2, $3, $4, $5, $6, $7, now_ms())`,
})

const DEAD_LETTER = 'job_id, run_id, queue, kind, user_id, error_code, error_message, retry_count, dead_at'

/** Takes job, run, queue, kind, user, error code, error message, retry count. */
export const insertDeadLetters = statement('insert_dead_letters', {
  postgres: `INSERT INTO ichido.dead_letters (${DEAD_LETTER})
    SELECT t.*, now_ms() FROM unnest($1::uuid[], $2::uuid[], $3::text[], $4::text[], $5::text[], $6::text[], $7::text[],
      $8::integer[]) t`,
  sqlite: `INSERT INTO ichido.dead_letters (${DEAD_LETTER}) VALUES ($1, $2, $3, $4, $5, $6, $7, $8, now_ms())`,
})

/** Takes job, n, domain, data: what happened to a run, written in the transaction that moves it. */
export const insertLifecycle = statement('insert_lifecycle', {
  postgres: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT t.job_id, t.n, 'run', t.n, t.domain, t.data, now_ms()
    FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::text[]) AS t(job_id, n, domain, data)`,
  sqlite: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    VALUES ($1, $2, 'run', $2, $3, $4, now_ms())`,
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

/**
 * Takes a maximum. Delayed runs whose time has come enter the index that leases read; any node may do it. The time is a
 * subquery: as a bare function it is asked for every row, and the index is read to its end, past all that is not due.
 */
export const promoteRuns = statement('promote_runs', {
  postgres: `WITH c AS MATERIALIZED (
      SELECT id FROM ichido.runs WHERE state = 'PENDING' AND fair_tag IS NULL AND run_at <= (SELECT now_ms())
      ORDER BY run_at LIMIT $1 FOR UPDATE SKIP LOCKED)
    UPDATE ichido.runs r SET fair_tag = r.run_at FROM c WHERE r.id = c.id RETURNING r.queue`,
  sqlite: `UPDATE ichido.runs SET fair_tag = run_at WHERE id IN (
      SELECT id FROM ichido.runs WHERE state = 'PENDING' AND fair_tag IS NULL AND run_at <= (SELECT now_ms())
      ORDER BY run_at LIMIT $1) RETURNING queue`,
})

/** When the next delayed run is due, in ms from now; null when none waits. */
export const nextDue = statement(
  'next_due',
  `SELECT min(run_at) - now_ms() AS in_ms FROM ichido.runs WHERE state = 'PENDING' AND fair_tag IS NULL`,
)
