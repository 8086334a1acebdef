import { RUN_STATES } from '../../core/run/run-state.ts'
import { statement } from '../statement.ts'

// Every statement names its columns: a node keeps its prepared statements while the next version adds a column, and PostgreSQL
// refuses a prepared `*` whose meaning has changed.
export const MOVED = 'id, job_id, run_no, queue, kind, user_id, state, attempt, retry_count, last_event_n'
export const MOVED_R = MOVED.replaceAll(/\w+/g, 'r.$&')
export const FACTS = `id, job_id, state, version, run_at, attempt, retry_count, assigned_worker_id, lease_id, start_id, leader_epoch,
  cancel_requested_at, outcome_hash`
const state = { oneOf: RUN_STATES } as const
export const MOVED_ROW = {
  id: 'text',
  job_id: 'text',
  run_no: 'integer',
  queue: 'text',
  kind: 'text',
  user_id: 'text',
  state,
  attempt: 'integer',
  retry_count: 'integer',
  last_event_n: 'integer',
} as const
export const FACTS_ROW = {
  id: 'text',
  job_id: 'text',
  state,
  version: 'integer',
  run_at: 'integer',
  attempt: 'integer',
  retry_count: 'integer',
  assigned_worker_id: 'text?',
  lease_id: 'text?',
  start_id: 'text?',
  leader_epoch: 'integer?',
  cancel_requested_at: 'integer?',
  outcome_hash: 'text?',
} as const
const FOLLOWED = `r.id AS run_id, r.queue, r.retry_count, n.id AS next_id, n.run_at AS next_run_at,
    n.retry_count AS next_retry_count, d.retry_count AS dead_retry_count
  FROM ichido.runs r LEFT JOIN ichido.runs n ON n.job_id = r.job_id AND n.run_no = r.run_no + 1
    LEFT JOIN ichido.dead_letters d ON d.job_id = r.job_id AND d.run_id = r.id`

/**
 * Writes an event for each run that `m` moved, in the statement that moves it. The domain is empty: readers take it from the job.
 * A lookup here cost 6 µs a move.
 */
export const MOVES_WRITTEN = `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT m.job_id, m.last_event_n, 'run', m.last_event_n, '',
        '{"state":"' || m.state || '","attempt":' || m.attempt || '}', (SELECT now_ms()) FROM m`

/** For a statement that may be a transaction by itself: its commit waits for the disk, whatever its session says. */
export const DURABLY_NOW = `(SELECT now_ms() FROM set_config('synchronous_commit', 'on', true))`

/** The same for the run `$run_id` on SQLite, if the statement before it changed the run. */
const MOVE_WRITTEN = `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT job_id, last_event_n, 'run', last_event_n, '', '{"state":"' || state || '","attempt":' || attempt || '}', now_ms()
      FROM ichido.runs WHERE id = $run_id AND changes() = 1`
const moved = (columns: string) => `SELECT ${columns} FROM ichido.runs WHERE id = $run_id AND changes() = 1`

// `state || ''` keeps PostgreSQL on the primary key: for the bare column it scans the partial index of live runs.
export const GUARD = 'r.assigned_worker_id = t.worker_id AND r.lease_id = t.lease_id'
export const HELD = 'id = $run_id AND assigned_worker_id = $worker_id AND lease_id = $lease_id'

/**
 * Sorts the items by run. The UPDATE locks the runs in this order, so batches of two nodes never deadlock: its joins are nested
 * loops, by the settings of every transaction.
 */
export const SORTED = 'ORDER BY t.run_id'

const STARTED = 'id, job_id, state, version, attempt, leader_epoch, last_event_n, kind, run_at, started_at'

/** Guards its parameters and ASSIGNED. A null version fits any version. */
export const startRuns = statement('start_runs', {
  params: { run_id: 'text', worker_id: 'text', lease_id: 'text', version: 'integer?', start_id: 'text' },
  row: {
    id: 'text',
    job_id: 'text',
    state: state,
    version: 'integer',
    attempt: 'integer',
    leader_epoch: 'integer',
    last_event_n: 'integer',
    kind: 'text',
    run_at: 'integer',
    started_at: 'integer',
  },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $worker_id::text[], $lease_id::text[], $version::integer[], $start_id::text[])
        AS t(run_id, worker_id, lease_id, version, start_id) ${SORTED}),
    m AS (UPDATE ichido.runs r SET state = 'RUNNING', version = r.version + 1, start_id = t.start_id, started_at = now_ms(),
        leader_epoch = (SELECT epoch FROM ichido.leadership WHERE id = 1), last_event_n = r.last_event_n + 1
      FROM t WHERE r.id = t.run_id AND r.state || '' = 'ASSIGNED' AND ${GUARD} AND (t.version IS NULL OR t.version = r.version)
      RETURNING ${STARTED.replaceAll(/\w+/g, 'r.$&')}),
    e AS (${MOVES_WRITTEN})
    SELECT ${STARTED} FROM m`,
  sqlite: [
    `UPDATE ichido.runs SET state = 'RUNNING', version = version + 1, start_id = $start_id, started_at = now_ms(),
      leader_epoch = (SELECT epoch FROM ichido.leadership WHERE id = 1), last_event_n = last_event_n + 1
    WHERE ${HELD} AND state = 'ASSIGNED' AND ($version IS NULL OR $version = version)`,
    MOVE_WRITTEN,
    moved(STARTED),
  ],
})

const TIMES = 'started_at, finished_at'
const TIMES_R = TIMES.replaceAll(/\w+/g, 'r.$&')

/** Whether any queue has a limit: then an ended run may have made room. */
const LIMITED = 'EXISTS (SELECT 1 FROM ichido.queues WHERE max_concurrent IS NOT NULL) AS limited'
const ENDED = `id, job_id, queue, kind, user_id, state, retry_count, ${TIMES}, ${LIMITED}`

const ENDS = `${HELD} AND state = 'RUNNING' AND ($version IS NULL OR $version = version)
      AND ($epoch IS NULL OR $epoch = leader_epoch)`

const FINISH_PARAMS = {
  run_id: 'text',
  worker_id: 'text',
  lease_id: 'text',
  version: 'integer?',
  epoch: 'integer?',
  state,
  outcome_hash: 'text',
  error: 'text?',
  result: 'text?',
  summary_text: 'text?',
  freqs_csv: 'text?',
  meta: 'text?',
  cost_micros: 'integer?',
} as const

const RESULT = 'run_id, job_id, result, summary_text, freqs_csv, meta, cost_micros, created_at'

/**
 * Guards RUNNING, holder, version and the epoch of the start. A null version or epoch fits any. With a cancel request, the run
 * ends CANCELED and has no result. An empty result is not stored.
 */
export const finishRuns = statement('finish_runs', {
  params: FINISH_PARAMS,
  row: {
    id: 'text',
    job_id: 'text',
    queue: 'text',
    kind: 'text',
    user_id: 'text',
    state: state,
    retry_count: 'integer',
    started_at: 'integer',
    finished_at: 'integer',
    limited: 'flag',
  },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $worker_id::text[], $lease_id::text[], $version::integer[], $epoch::bigint[], $state::text[], $outcome_hash::text[],
        $error::text[], $result::text[], $summary_text::text[], $freqs_csv::text[], $meta::text[], $cost_micros::bigint[])
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
      SELECT id, job_id, $result, $summary_text, $freqs_csv, $meta, $cost_micros, now_ms() FROM ichido.runs
      WHERE $state = 'SUCCEEDED' AND coalesce($result, $summary_text, $freqs_csv, $meta, $cost_micros) IS NOT NULL AND cancel_requested_at IS NULL
        AND ${ENDS}`,
    `UPDATE ichido.runs SET state = CASE WHEN cancel_requested_at IS NULL THEN $state ELSE 'CANCELED' END,
      version = version + 1, finished_at = now_ms(), outcome_hash = $outcome_hash, error = $error,
      continuation_state = 'NONE', last_event_n = last_event_n + 1
    WHERE ${ENDS}`,
    MOVE_WRITTEN,
    moved(ENDED),
  ],
})

/** The same as a transaction by itself. */
export const finishPlain = statement('finish_plain', {
  params: finishRuns.params,
  row: finishRuns.row,
  postgres: finishRuns.postgres,
  sqlite: [],
})

/**
 * Guards holder, ASSIGNED or RUNNING. An assigned run can be leased again, and a running run ends with this error and outcome
 * hash.
 */
export const releaseRuns = statement('release_runs', {
  params: { run_id: 'text', worker_id: 'text', lease_id: 'text', error: 'text', outcome_hash: 'text' },
  row: MOVED_ROW,
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $worker_id::text[], $lease_id::text[], $error::text[], $outcome_hash::text[])
        AS t(run_id, worker_id, lease_id, error, outcome_hash) ${SORTED}),
    m AS (UPDATE ichido.runs r SET ${released('r.', 't.error', 't.outcome_hash')}
      FROM t WHERE r.id = t.run_id AND r.state || '' IN ('ASSIGNED', 'RUNNING') AND ${GUARD} RETURNING ${MOVED_R}),
    e AS (${MOVES_WRITTEN})
    SELECT ${MOVED} FROM m`,
  sqlite: [
    `UPDATE ichido.runs SET ${released('', '$error', '$outcome_hash')} WHERE ${HELD} AND state IN ('ASSIGNED', 'RUNNING')`,
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

/** The facts that `decide()` needs to say why a write changed nothing. */
export const readFacts = statement('read_facts', {
  params: { id: 'text' },
  row: FACTS_ROW,
  postgres: `SELECT ${FACTS} FROM ichido.runs WHERE id = ANY($id::uuid[])`,
  sqlite: `SELECT ${FACTS} FROM ichido.runs WHERE id = $id`,
})

export const readOwner = statement('read_owner', {
  params: { id: 'text' },
  row: { user_id: 'text' },
  sql: 'SELECT user_id FROM ichido.runs WHERE id = $id',
})

/** The next run or the dead letter of runs that failed before. */
export const readFollowed = statement('read_followed', {
  params: { id: 'text' },
  row: {
    run_id: 'text',
    queue: 'text',
    retry_count: 'integer',
    next_id: 'text?',
    next_run_at: 'integer?',
    next_retry_count: 'integer?',
    dead_retry_count: 'integer?',
  },
  postgres: `SELECT ${FOLLOWED} WHERE r.id = ANY($id::uuid[])`,
  sqlite: `SELECT ${FOLLOWED} WHERE r.id = $id`,
})

/** For runs that ended in this transaction. */
export const supersedeRuns = statement('supersede_runs', {
  params: { id: 'text' },
  row: {},
  postgres: 'UPDATE ichido.runs SET latest = false WHERE id = ANY($id::uuid[]) AND latest',
  sqlite: 'UPDATE ichido.runs SET latest = false WHERE id = $id AND latest',
})

/** `run_id` is the run that ended. A run can have only one next run. */
export const insertNextRuns = statement('insert_next_runs', {
  params: { run_id: 'text', next_id: 'text', delay_ms: 'integer', retry_count: 'integer' },
  row: {
    run_id: 'text',
    job_id: 'text',
    state: state,
    attempt: 'integer',
    last_event_n: 'integer',
    kind: 'text',
    queue: 'text',
    run_at: 'integer',
  },
  postgres: `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
      priority, run_at, fair_tag, created_at, continuation_state, last_event_n, definition_id)
    SELECT t.next_id, r.job_id, r.run_no + 1, true, r.queue, r.kind, r.user_id, r.attempt, t.retry_count, 'PENDING', 1,
      r.priority, now_ms() + t.delay_ms, CASE WHEN t.delay_ms = 0 THEN coalesce(r.fair_tag, 0) END, now_ms(), 'NONE',
      r.last_event_n + 1, r.definition_id
    FROM unnest($run_id::uuid[], $next_id::uuid[], $delay_ms::bigint[], $retry_count::integer[]) AS t(run_id, next_id, delay_ms, retry_count)
    JOIN ichido.runs r ON r.id = t.run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind, queue, run_at`,
  sqlite: `INSERT INTO ichido.runs (id, job_id, run_no, latest, queue, kind, user_id, attempt, retry_count, state, version,
      priority, run_at, fair_tag, created_at, continuation_state, last_event_n, definition_id)
    SELECT $next_id, job_id, run_no + 1, true, queue, kind, user_id, attempt, $retry_count, 'PENDING', 1,
      priority, now_ms() + $delay_ms, CASE WHEN $delay_ms = 0 THEN coalesce(fair_tag, 0) END, now_ms(), 'NONE', last_event_n + 1,
      definition_id
    FROM ichido.runs WHERE id = $run_id
    RETURNING id AS run_id, job_id, state, attempt, last_event_n, kind, queue, run_at`,
})
