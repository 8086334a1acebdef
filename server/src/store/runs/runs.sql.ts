import { EMPTY_OUTCOME } from '../../core/run/run-state.ts'
import { statement } from '../statement.ts'
import {
  changed,
  DURABLY_NOW,
  EPOCH,
  endPostgres,
  endSqlite,
  HELD_STATE,
  MOVED_ROW,
  MOVES_WRITTEN,
  OF_JOB,
  orphanPostgres,
  orphanSqlite,
  READY,
  READY_STATE,
  state,
} from './rooms.sql.ts'

// Every statement names its columns: a node keeps its prepared statements while the next version adds a column, and PostgreSQL
// refuses a prepared `*` whose meaning has changed.

/** A worker names a run by the job and the token of its lease. */
export const HOLDER = { job_id: 'text', worker_id: 'text', token: 'text' } as const

// `worker_id || ''` keeps PostgreSQL on the primary key: for the bare column it may read all runs of the worker.
export const HOLDS = "by_key(r.job_id, t.job_id) AND r.worker_id || '' = t.worker_id AND r.token = t.token"
export const HOLDS_SQLITE = 'r.job_id = $job_id AND r.worker_id = $worker_id AND r.token = $token'

/**
 * Sorts the items by job. The statement locks the runs in this order, so batches of two nodes never deadlock: its joins are nested
 * loops, by the settings of every transaction.
 */
export const SORTED = 'ORDER BY t.job_id'
/** The same order, for a few runs that another index than that of the jobs finds. */
export const IN_LOCK_ORDER = 'ORDER BY CAST(job_id AS text)'

const STARTED = 'job_id, run_id, version, attempt, leader_epoch, queue, kind, run_at, started_at'

const STARTING = `version = r.version + 1, start_id = $start_id, started_at = now_ms(), leader_epoch = ${EPOCH}, n = r.n + 1`

/** Guards its parameters and ASSIGNED. A null version fits any version. */
export const startRuns = statement('start_runs', {
  params: { ...HOLDER, version: 'integer?', start_id: 'text' },
  row: {
    job_id: 'text',
    run_id: 'text',
    version: 'integer',
    attempt: 'integer',
    leader_epoch: 'integer',
    queue: 'text',
    kind: 'text',
    run_at: 'integer',
    started_at: 'integer',
  },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($job_id::uuid[], $worker_id::text[], $token::text[], $version::integer[], $start_id::text[])
        AS t(job_id, worker_id, token, version, start_id) ${SORTED}),
    m AS (UPDATE ichido.held r SET ${STARTING.replace('$start_id', 't.start_id')}
      FROM t WHERE ${HOLDS} AND r.started_at IS NULL AND (t.version IS NULL OR t.version = r.version)
      RETURNING ${STARTED.replaceAll(/\w+/g, 'r.$&')}, r.n, 'RUNNING' AS state),
    e AS (${MOVES_WRITTEN})
    SELECT ${STARTED} FROM m`,
  sqlite: [
    `UPDATE ichido.held AS r SET ${STARTING.replaceAll('r.', '')}
    WHERE ${HOLDS_SQLITE} AND r.started_at IS NULL AND ($version IS NULL OR $version = r.version)`,
    ...changed('held', STARTED),
  ],
})

/** Whether any queue has a limit: then an ended run may have made room. */
const LIMITED = 'EXISTS (SELECT 1 FROM ichido.queues WHERE max_concurrent IS NOT NULL) AS limited'
const FINISHED = `job_id, run_id, run_no, queue, kind, user_id, state, retry_count, started_at, finished_at`
const RESULT = 'run_id, job_id, result, summary_text, freqs_csv, meta, cost_micros, created_at'

const FINISH_PARAMS = {
  ...HOLDER,
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

/** A SUCCEEDED run without a hash returned nothing. */
const storedHash = (hash: string) =>
  `CASE WHEN r.cancel_requested_at IS NULL THEN nullif(${hash}, '${EMPTY_OUTCOME}') ELSE ${hash} END`

/** A run with a cancel request ends CANCELED, whatever its report says. */
const unlessCanceled = (end: string) => `CASE WHEN r.cancel_requested_at IS NULL THEN ${end} ELSE 'CANCELED' END`

const FINISHES_SQLITE = `${HOLDS_SQLITE} AND r.started_at IS NOT NULL AND ($version IS NULL OR $version = r.version)
      AND ($epoch IS NULL OR $epoch = r.leader_epoch)`

/**
 * Guards RUNNING, holder, version and the epoch of the start. A null version or epoch fits any. With a cancel request, the run
 * ends CANCELED and has no result. An empty result is not stored.
 */
export const finishRuns = statement('finish_runs', {
  params: FINISH_PARAMS,
  row: {
    job_id: 'text',
    run_id: 'text',
    run_no: 'integer',
    queue: 'text',
    kind: 'text',
    user_id: 'text',
    state,
    retry_count: 'integer',
    started_at: 'integer',
    finished_at: 'integer',
    limited: 'flag',
  },
  postgres: endPostgres({
    room: 'held',
    given: `t AS MATERIALIZED (
      SELECT t.* FROM unnest($job_id::uuid[], $worker_id::text[], $token::text[], $version::integer[], $epoch::bigint[],
        $state::text[], $outcome_hash::text[], $error::text[], $result::text[], $summary_text::text[], $freqs_csv::text[],
        $meta::text[], $cost_micros::bigint[])
        AS t(job_id, worker_id, token, version, epoch, state, outcome_hash, error, result, summary_text, freqs_csv, meta,
          cost_micros) ${SORTED})`,
    where: `${HOLDS} AND r.started_at IS NOT NULL AND (t.version IS NULL OR t.version = r.version)
        AND (t.epoch IS NULL OR t.epoch = r.leader_epoch)`,
    end: {
      state: unlessCanceled('t.state'),
      now: DURABLY_NOW,
      outcomeHash: storedHash('t.outcome_hash'),
      error: 't.error',
    },
    more: ', t.result, t.summary_text, t.freqs_csv, t.meta, t.cost_micros',
    also: `,
    s AS (INSERT INTO ichido.results (${RESULT})
      SELECT run_id, job_id, result, summary_text, freqs_csv, meta, cost_micros, (SELECT now_ms()) FROM m
      WHERE state = 'SUCCEEDED' AND coalesce(result, summary_text, freqs_csv, meta, cost_micros::text) IS NOT NULL)`,
    answer: `SELECT ${FINISHED}, ${LIMITED} FROM m`,
  }),
  sqlite: [
    `INSERT INTO ichido.results (${RESULT})
      SELECT r.run_id, r.job_id, $result, $summary_text, $freqs_csv, $meta, $cost_micros, now_ms() FROM ichido.held r
      WHERE $state = 'SUCCEEDED' AND coalesce($result, $summary_text, $freqs_csv, $meta, $cost_micros) IS NOT NULL
        AND r.cancel_requested_at IS NULL AND ${FINISHES_SQLITE}`,
    ...endSqlite(
      'held',
      FINISHES_SQLITE,
      { state: unlessCanceled('$state'), now: 'now_ms()', outcomeHash: storedHash('$outcome_hash'), error: '$error' },
      `, m.started_at, m.finished_at, ${LIMITED}`,
    ),
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
 * The same for runs of one worker that returned nothing, as most runs do. `jobs` and `tokens` are array literals in the order of the
 * jobs, which is also the order of the locks: thirteen arrays cost three times as much as two. There is no join: one scan of the
 * index finds all runs.
 */
export const finishEmpty = statement('finish_empty', {
  params: { jobs: 'text', tokens: 'text', worker_id: 'text' },
  row: {
    job_id: 'text',
    state,
    retry_count: 'integer',
    took_ms: 'integer',
    queue: 'text',
    kind: 'text',
    limited: 'flag',
  },
  postgres: endPostgres({
    room: 'held',
    where: `r.job_id = ANY($jobs::uuid[]) AND r.worker_id || '' = $worker_id::text AND r.started_at IS NOT NULL
        AND r.token = ($tokens::text[])[width_bucket(r.job_id, $jobs::uuid[])]`,
    end: {
      state: unlessCanceled("'SUCCEEDED'"),
      now: DURABLY_NOW,
      outcomeHash: storedHash(`'${EMPTY_OUTCOME}'`),
      error: 'CAST(NULL AS text)',
    },
    answer: `SELECT job_id, state, retry_count, finished_at - started_at AS took_ms, queue, kind, ${LIMITED} FROM m`,
  }),
  sqlite: [],
})

/** Guards holder and ASSIGNED. The run can be leased again. A worker gives a RUNNING run back by a report. */
export const releaseRuns = statement('release_runs', {
  params: HOLDER,
  row: MOVED_ROW,
  postgres: orphanPostgres(
    `t AS MATERIALIZED (
      SELECT t.* FROM unnest($job_id::uuid[], $worker_id::text[], $token::text[]) AS t(job_id, worker_id, token) ${SORTED})`,
    HOLDS,
  ),
  sqlite: orphanSqlite(HOLDS_SQLITE),
})

export const FACTS_ROW = {
  job_id: 'text',
  run_id: 'text',
  latest: 'flag',
  state,
  version: 'integer',
  run_at: 'integer',
  attempt: 'integer',
  retry_count: 'integer',
  worker_id: 'text?',
  token: 'text?',
  start_id: 'text?',
  leader_epoch: 'integer?',
  cancel_requested_at: 'integer?',
  outcome_hash: 'text?',
} as const

const IN_ALL = 'r.job_id, r.run_id, r.version, r.run_at, r.attempt, r.retry_count, r.worker_id, r.token'
const NONE =
  'CAST(NULL AS text) AS start_id, CAST(NULL AS bigint) AS leader_epoch, CAST(NULL AS bigint) AS cancel_requested_at'
const NO_HASH = 'CAST(NULL AS text) AS outcome_hash'

/** The facts of a run in each room, in the same columns. */
export const FACTS = {
  ready: `${IN_ALL}, true AS latest, ${READY_STATE('r')} AS state, ${NONE}, ${NO_HASH}`,
  held: `${IN_ALL}, true AS latest, ${HELD_STATE('r')} AS state, r.start_id, r.leader_epoch, r.cancel_requested_at, ${NO_HASH}`,
  ended: `${IN_ALL}, r.latest, r.state, r.start_id, r.leader_epoch, r.cancel_requested_at,
    coalesce(r.outcome_hash, CASE WHEN r.state = 'SUCCEEDED' THEN '${EMPTY_OUTCOME}' END) AS outcome_hash`,
}

const factsOf = (from: (room: string) => string, job: string, token: string) => `
    SELECT ${FACTS.ready} FROM ${from('ready')} WHERE r.job_id = ${job}
    UNION ALL SELECT ${FACTS.held} FROM ${from('held')} WHERE r.job_id = ${job}
    UNION ALL SELECT ${FACTS.ended} FROM ${from('ended')} WHERE r.job_id = ${job} AND (r.latest OR r.token = ${token})`

/**
 * The facts that `decide()` needs to say why a write changed nothing: of the run that had this lease, and of the job's latest
 * run. One statement, because a run may change rooms between two.
 */
export const readFacts = statement('read_facts', {
  params: { job_id: 'text', token: 'text' },
  row: FACTS_ROW,
  postgres: `SELECT f.* FROM unnest($job_id::uuid[], $token::text[]) AS t(job_id, token)
    CROSS JOIN LATERAL (${factsOf((room) => `ichido.${room} r`, 't.job_id', 't.token')}) f`,
  sqlite: factsOf((room) => `ichido.${room} r`, '$job_id', '$token'),
})

const FOLLOWED = `r.job_id, r.run_id, r.token, j.queue, r.retry_count, coalesce(q.run_id, h.run_id, n.run_id) AS next_id,
    coalesce(q.run_at, h.run_at, n.run_at) AS next_run_at, coalesce(q.retry_count, h.retry_count, n.retry_count) AS next_retry_count,
    d.retry_count AS dead_retry_count
  FROM ichido.ended r JOIN ichido.jobs j ON j.id = r.job_id
    LEFT JOIN ichido.ready q ON by_key(q.job_id, r.job_id) AND q.run_no = r.run_no + 1
    LEFT JOIN ichido.held h ON by_key(h.job_id, r.job_id) AND h.run_no = r.run_no + 1
    LEFT JOIN ichido.ended n ON n.job_id = r.job_id AND n.run_no = r.run_no + 1
    LEFT JOIN ichido.dead_letters d ON d.job_id = r.job_id AND d.run_id = r.run_id`

/** The next run or the dead letter of a run that failed before, under this lease. */
export const readFollowed = statement('read_followed', {
  params: { job_id: 'text', token: 'text' },
  row: {
    job_id: 'text',
    token: 'text',
    queue: 'text',
    retry_count: 'integer',
    next_id: 'text?',
    next_run_at: 'integer?',
    next_retry_count: 'integer?',
    dead_retry_count: 'integer?',
  },
  postgres: `SELECT f.* FROM unnest($job_id::uuid[], $token::text[]) AS t(job_id, token)
    CROSS JOIN LATERAL (SELECT ${FOLLOWED} WHERE r.job_id = t.job_id AND r.token = t.token) f`,
  sqlite: `SELECT ${FOLLOWED} WHERE r.job_id = $job_id AND r.token = $token`,
})

/** The next run of the ended run `e` of the job `j`. */
const nextRun = (
  engine: 'postgres' | 'sqlite',
  given: (name: string) => string,
) => `e.job_id, ${given('next_id')}, e.run_no + 1,
      j.queue, j.kind, j.user_id, ${given('retry_count')}, j.priority, now_ms() + ${given('delay_ms')},
      CASE WHEN ${given('delay_ms')} = 0 THEN coalesce(${given('tag')}, e.fair_tag, 0) END,
      coalesce(${given('created_at')}, now_ms()), j.definition_id, e.attempt, 1, e.n + 1, ${OF_JOB(engine, 'j')}, NULL, NULL, NULL`

/**
 * `run_no` is the run that has ended, and is the latest: a job has one next run. Without a `tag`, a run that is due now keeps the
 * place of the run before. Without a `delay_ms` it is due now. `created_at` is now if it is null.
 */
export const insertNextRuns = statement('insert_next_runs', {
  params: {
    job_id: 'text',
    run_no: 'integer',
    next_id: 'text',
    delay_ms: 'integer',
    retry_count: 'integer',
    tag: 'integer?',
    created_at: 'integer?',
  },
  row: { job_id: 'text', run_id: 'text', queue: 'text', run_at: 'integer' },
  postgres: `WITH t AS MATERIALIZED (
      SELECT * FROM unnest($job_id::uuid[], $run_no::integer[], $next_id::uuid[], $delay_ms::bigint[], $retry_count::integer[],
        $tag::bigint[], $created_at::bigint[]) AS t(job_id, run_no, next_id, delay_ms, retry_count, tag, created_at) ${SORTED}),
    e AS (UPDATE ichido.ended e SET latest = false FROM t
      WHERE e.job_id = t.job_id AND e.run_no = t.run_no AND e.latest
      RETURNING e.job_id, e.run_no, e.fair_tag, e.attempt, e.n, t.next_id, t.delay_ms, t.retry_count, t.tag, t.created_at),
    m AS (INSERT INTO ichido.ready (${READY})
      SELECT ${nextRun('postgres', (name) => `e.${name}`)} FROM e JOIN ichido.jobs j ON j.id = e.job_id
      RETURNING job_id, run_id, queue, run_at, attempt, n, 'PENDING' AS state),
    v AS (${MOVES_WRITTEN})
    SELECT job_id, run_id, queue, run_at FROM m`,
  sqlite: [
    `INSERT INTO ichido.ready (${READY})
      SELECT ${nextRun('sqlite', (name) => `$${name}`)} FROM ichido.ended e JOIN ichido.jobs j ON j.id = e.job_id
      WHERE e.job_id = $job_id AND e.run_no = $run_no AND e.latest`,
    'UPDATE ichido.ended SET latest = false WHERE job_id = $job_id AND run_no = $run_no AND changes() = 1',
    ...changed('ready', 'job_id, run_id, queue, run_at'),
  ],
})
