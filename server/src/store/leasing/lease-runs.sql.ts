import { SEQ_PER_ATTEMPT } from '../../core/events/event.ts'
import { DEFAULT_CONTINUATION_SECONDS, parsePolicy } from '../../core/run/job.ts'
import { DURABLY_NOW, EPOCH, HELD, HELD_POSTGRES, HELD_STATE, MOVES_WRITTEN, of, TX } from '../runs/rooms.sql.ts'
import { statement } from '../statement.ts'

/** A run that is due has a tag. A delayed run gets its tag when it is promoted. */
export const DUE = 'fair_tag IS NOT NULL'
const ORDER = 'priority DESC, fair_tag, job_id'

/**
 * Names the advisory lock of a queue. A lease shares the lock, and a command that pauses or limits the queue takes it alone. A
 * lock on the queue's row would not do: the row may not exist yet, and each lease would have to write its share.
 */
export const queueLock = (queue: string) => `hashtextextended('ichido.queues ' || ${queue}, 0)`

/** The last event of earlier attempts, in any stage if the job declares stages. `stage || ''` leads to the index by number. */
const lastProgress = (
  perAttempt: string,
  staged: string,
) => `CASE WHEN r.attempt > 1 THEN (SELECT e.data FROM ichido.events e
    WHERE e.job_id = r.job_id AND e.seq < (r.attempt - 1) * ${perAttempt}
      AND CASE WHEN ${staged} THEN e.stage || '' <> 'run' ELSE e.stage || '' = 'progress' END
    ORDER BY e.n DESC LIMIT 1) END AS last_progress`
const FIELDS = "'artifact_id', a.id, 'name', a.name, 'sha256', a.sha256, 'size_bytes', a.size_bytes"
// The inputs of the job, not the outputs of an earlier run.
const READY_ARTIFACTS = "FROM ichido.artifacts a WHERE a.job_id = r.job_id AND a.run_id IS NULL AND a.state = 'ready'"
const OF_RUN = `job_id, run_id, attempt, retry_count, version, lease_expires_at, leader_epoch, kind, user_id, priority, fair_tag,
  lease_ttl_ms, continuation_ms`
const OF_POLL = 'queue, worker_id, poll_id, token'
const leasedPostgres = (ofHeld: string) => `${of('r', ofHeld)}, j.payload, j.policy, j.traceparent,
  ${lastProgress(`bigint '${SEQ_PER_ATTEMPT}'`, `nullif(j.policy, '{}')::json -> 'stages' IS NOT NULL`)},
  CASE WHEN EXISTS (SELECT 1 FROM ichido.artifacts)
    THEN (SELECT json_agg(json_build_object(${FIELDS}) ORDER BY a.name, a.id)::text ${READY_ARTIFACTS}) END AS artifacts`
const LEASED_POSTGRES = leasedPostgres(`${OF_RUN}, ${OF_POLL}`)
const LEASED_SQLITE = `${of('r', `${OF_RUN}, ${OF_POLL}`)}, j.payload, j.policy, j.traceparent,
  ${lastProgress(String(SEQ_PER_ATTEMPT), `json_extract(j.policy, '$.stages') IS NOT NULL`)},
  (SELECT json_group_array(json_object(${FIELDS}) ORDER BY a.name, a.id) ${READY_ARTIFACTS}) AS artifacts`

const LEASED_RUN_ROW = {
  run_id: 'text',
  job_id: 'text',
  attempt: 'integer',
  retry_count: 'integer',
  version: 'integer',
  lease_expires_at: 'integer',
  leader_epoch: 'integer?',
  kind: 'text',
  user_id: 'text',
  priority: 'integer',
  fair_tag: 'integer',
  lease_ttl_ms: 'integer',
  continuation_ms: 'integer',
  payload: 'text',
  policy: { json: parsePolicy },
  traceparent: 'text?',
  last_progress: 'text?',
  artifacts: 'text?',
} as const
const LEASED_ROW = { ...LEASED_RUN_ROW, queue: 'text', worker_id: 'text', poll_id: 'text', token: 'text' } as const
const NEW_LEASE_ROW = { ...LEASED_ROW, waited_ms: 'integer?' } as const
/** `poll` is the number of the poll in the statement, from 1. The caller knows the poll's queue, worker and token. */
export const PLAIN_LEASE_ROW = { ...LEASED_RUN_ROW, waited_ms: 'integer?', poll: 'integer' } as const

/** The worker was revoked or drains. */
export const BARRED = '(revoked_at IS NOT NULL OR draining_since IS NOT NULL)'

/** Only for a new lease that starts its run: a repeated answer was counted before. */
const WAITED = 'r.started_at - r.run_at AS waited_ms'

/**
 * Answers with the queues that are paused or limited, and with the workers that get nothing: those that drain and, with
 * `revoked_at`, those that are revoked.
 * - A poll may be repeated before its first answer has committed, by a node that lost the connection or on another node. The
 *   repeat waits here. Otherwise it would lease other runs, and no worker would know of the first ones.
 * - An open queue stays open until the commit: a command that pauses or limits the queue waits. Other leases do not.
 * - A queue with a limit is locked. A later statement counts the held runs, and sees the leases of the transaction before.
 * - A worker stays as it is until the commit: its revocation or drain waits, and then finds these leases.
 * Every transaction takes these locks in this order, and sorted.
 */
export const enterLease = statement('enter_lease', {
  params: { poll: 'text', queue: 'text', worker_id: 'text' },
  row: {
    queue: 'text?',
    paused_at: 'integer?',
    max_concurrent: 'integer?',
    barred_worker: 'text?',
    revoked_at: 'integer?',
  },
  postgres: `WITH p AS MATERIALIZED (
      SELECT count(pg_advisory_xact_lock(hashtextextended(t.name, 0))) AS polls
      FROM (SELECT DISTINCT name FROM unnest($poll::text[]) AS t(name) ORDER BY name) t),
    o AS MATERIALIZED (
      SELECT count(pg_advisory_xact_lock_shared(${queueLock('t.name')})) AS queues
      FROM (SELECT DISTINCT name FROM unnest($queue::text[]) AS t(name) WHERE (SELECT polls FROM p) > 0 ORDER BY name) t),
    q AS MATERIALIZED (
      SELECT name, paused_at, max_concurrent FROM ichido.queues
      WHERE name = ANY($queue::text[]) AND (paused_at IS NOT NULL OR max_concurrent IS NOT NULL) AND (SELECT queues FROM o) > 0
      ORDER BY name FOR UPDATE),
    w AS MATERIALIZED (
      SELECT worker_id, revoked_at, draining_since FROM ichido.workers
      WHERE worker_id = ANY($worker_id::text[]) ORDER BY worker_id FOR KEY SHARE)
    SELECT x.queue, x.paused_at, x.max_concurrent, x.barred_worker, x.revoked_at FROM o CROSS JOIN LATERAL (
      SELECT name AS queue, paused_at, max_concurrent, NULL::text AS barred_worker, NULL::bigint AS revoked_at FROM q
      UNION ALL SELECT NULL, NULL, NULL, worker_id, revoked_at FROM w WHERE ${BARRED}) x`,
  sqlite: `SELECT name AS queue, paused_at, max_concurrent, NULL AS barred_worker, NULL AS revoked_at FROM ichido.queues
      WHERE name = $queue AND (paused_at IS NOT NULL OR max_concurrent IS NOT NULL)
    UNION ALL SELECT NULL, NULL, NULL, worker_id, revoked_at FROM ichido.workers WHERE worker_id = $worker_id AND ${BARRED}`,
})

/** A poll whose answer was lost gets the same leases again. */
export const leasedByPoll = statement('leased_by_poll', {
  params: { worker_id: 'text', poll_id: 'text' },
  row: LEASED_ROW,
  postgres: `SELECT ${LEASED_POSTGRES} FROM unnest($worker_id::text[], $poll_id::text[]) AS t(worker_id, poll_id)
    JOIN ichido.held r ON by_key(r.worker_id, t.worker_id) AND by_key(r.poll_id, t.poll_id) AND r.token IS NOT NULL
    JOIN ichido.jobs j ON by_key(j.id, r.job_id)`,
  sqlite: `SELECT ${LEASED_SQLITE} FROM ichido.held r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.worker_id = $worker_id AND r.poll_id = $poll_id AND r.token IS NOT NULL`,
})

/**
 * The number of held runs of a locked queue. It reads all held runs: an index by queue would cost every lease more than this
 * costs the few queues with a limit.
 */
export const countHeld = statement('count_held', {
  params: { queue: 'text' },
  row: { held: 'integer' },
  sql: 'SELECT count(*) AS held FROM ichido.held WHERE queue = $queue',
})

/** The kinds after this kind that have ready runs. It hops from kind to kind in the index. */
export const readyKinds = statement('ready_kinds', {
  params: { queue: 'text', after: 'text', max: 'integer' },
  row: { kind: 'text' },
  sql: `WITH RECURSIVE k AS (
      SELECT (SELECT min(kind) FROM ichido.ready WHERE queue = $queue AND kind > $after AND ${DUE}) AS kind
      UNION ALL
      SELECT (SELECT min(kind) FROM ichido.ready WHERE queue = $queue AND kind > k.kind AND ${DUE}) FROM k WHERE k.kind IS NOT NULL)
    SELECT kind FROM k WHERE kind IS NOT NULL LIMIT $max`,
})

/** The job's own time in ms, or that of its queue, or the given default. */
export const timeOf = (column: 'lease_ttl' | 'continuation', ofJob: string, queue: string, otherwise: string) =>
  `coalesce(${ofJob}, (SELECT q.${column}_seconds * 1000 FROM ichido.queues q WHERE q.name = ${queue}), ${otherwise})`

/**
 * The queue may have been paused or limited while a statement waited for it, and that statement has not seen it. `limited`: the
 * queue had a limit before, which holds until the commit.
 */
const STILL_OPEN = (
  queue: string,
  limited: string,
) => `NOT EXISTS (SELECT 1 FROM ichido.queues q WHERE q.name = ${queue}
          AND (q.paused_at IS NOT NULL OR (q.max_concurrent IS NOT NULL AND NOT ${limited})))`

export const DEFAULT_CONTINUATION_MS = DEFAULT_CONTINUATION_SECONDS * 1000

/** The columns of `held` for a run `r` of `ready`. `lease` has the poll `w`, or its parameters. */
const leasedRow = (held: string, lease: (column: string) => string, queue: string, now: string) => {
  const start = lease('start_id')
  const ifStarted = (value: string, none: string) => `CASE WHEN ${start} IS NULL THEN ${none} ELSE ${value} END`
  const ttl = timeOf('lease_ttl', 'r.lease_ttl_ms', queue, lease('lease_ttl_ms'))
  const continuation = timeOf('continuation', 'r.continuation_ms', queue, String(DEFAULT_CONTINUATION_MS))
  const columns: Record<string, string> = {
    attempt: 'r.attempt + 1',
    version: 'r.version + 1',
    n: 'r.n + 1',
    worker_id: lease('worker_id'),
    poll_id: lease('poll_id'),
    token: lease('token'),
    assigned_at: now,
    lease_expires_at: `${now} + ${ttl}`,
    lease_ttl_ms: ttl,
    continuation_ms: continuation,
    start_id: start,
    started_at: ifStarted(now, 'NULL'),
    leader_epoch: ifStarted(EPOCH, 'NULL'),
    deadline_at: 'CAST(NULL AS bigint)',
    cancel_requested_at: 'CAST(NULL AS bigint)',
    error: 'CAST(NULL AS text)',
    leased_n: ifStarted('r.n + 1', 'NULL'),
    leased_tx: ifStarted(TX, 'NULL'),
  }
  return held.replaceAll(/\w+/g, (column) => `${columns[column] ?? `r.${column}`} AS ${column}`)
}

/** The most bytes of payloads in one answer: answers are made in memory, and a payload may have 1 MiB. */
export const PAYLOADS_BYTES_MAX = 16 * 1024 * 1024

/** `kinds` is a JSON array. With a `start_id` the lease also starts the runs. */
const LEASE_PARAMS = {
  queue: 'text',
  kinds: 'text',
  max: 'integer',
  worker_id: 'text',
  poll_id: 'text',
  token: 'text',
  lease_ttl_ms: 'integer',
  start_id: 'text?',
} as const
const FROM_PARAMS = { from_priority: 'integer', from_fair_tag: 'integer' } as const

const QUEUE = '($queue::text[])[1]'
const KINDS = '($kinds::text[])[1]'
const kindOf = (kinds: string) => `json_array_elements_text(${kinds}::json) AS k(kind)`

/** Whether a run of these kinds (a JSON array) is ready. `from` is a condition on its place. */
export const anyReady = (queue: string, kinds: string, from: string) => `EXISTS (
        SELECT 1 FROM ${kindOf(kinds)} CROSS JOIN LATERAL (
          SELECT 1 FROM ichido.ready WHERE queue = ${queue} AND kind = k.kind AND ${DUE} ${from} LIMIT 1) r)`

/**
 * `gate` has the locks before the scan, the condition that they give, and the number of bytes that payloads may still have. The
 * payloads are read last, of the runs that were taken.
 */
function leasePostgres(
  from: string,
  gate: { with: string; open: string; left: string },
  leased: string,
  answer: string,
): string {
  return `WITH w AS MATERIALIZED (
      SELECT t.*, sum(t.max) OVER (ORDER BY t.n) AS upto
      FROM unnest($max::integer[], $worker_id::text[], $poll_id::text[], $token::text[], $lease_ttl_ms::bigint[], $start_id::text[])
        WITH ORDINALITY AS t(max, worker_id, poll_id, token, lease_ttl_ms, start_id, n)),
    ${gate.with}c AS MATERIALIZED (
      SELECT r.place, row_number() OVER o AS n, sum(r.bytes) OVER o AS bytes
      FROM ${kindOf(KINDS)} CROSS JOIN LATERAL (
        SELECT job_id, priority, fair_tag, bytes, ctid AS place FROM ichido.ready
        WHERE queue = ${QUEUE} AND kind = k.kind AND ${DUE} ${from}
        ORDER BY ${ORDER} LIMIT (SELECT max(upto) FROM w) FOR UPDATE SKIP LOCKED) r
      WHERE ${gate.open} WINDOW o AS (ORDER BY r.priority DESC, r.fair_tag, r.job_id ROWS UNBOUNDED PRECEDING)),
    m AS (DELETE FROM ichido.ready r USING c JOIN w ON c.n > w.upto - w.max AND c.n <= w.upto
      WHERE r.ctid = c.place AND (c.n = 1 OR c.bytes <= ${gate.left})
      RETURNING ${leasedRow(HELD_POSTGRES, (column) => `w.${column}`, QUEUE, DURABLY_NOW)},
        CASE WHEN w.start_id IS NULL THEN 'ASSIGNED' ELSE 'RUNNING' END AS state, w.n AS poll),
    h AS (INSERT INTO ichido.held (${HELD_POSTGRES}) SELECT ${HELD_POSTGRES} FROM m),
    e AS (${MOVES_WRITTEN} WHERE m.leased_n IS NULL),
    a AS (SELECT ${leased}, ${WAITED} FROM m r JOIN ichido.jobs j ON j.id = r.job_id)
    ${answer}`
}

/** Only runs of this priority, from this tag on. */
export const RESUMED = 'AND priority = ($from_priority::integer[])[1] AND fair_tag >= ($from_fair_tag::bigint[])[1]'

const ENTERED = { with: '', open: STILL_OPEN(QUEUE, '($limited::boolean[])[1]'), left: '($bytes_left::bigint[])[1]' }
const POSTGRES_FULL = leasePostgres('', ENTERED, LEASED_POSTGRES, 'SELECT * FROM a')
const POSTGRES_RESUMED = leasePostgres(RESUMED, ENTERED, LEASED_POSTGRES, 'SELECT * FROM a')

/**
 * Takes the locks of `enterLease`, in the same order. A function whose snapshot is newer than the locks then tells whether all is
 * plain. A worker is locked only if a run is ready, so that most polls that find nothing also write nothing.
 */
function enteringPostgres(from: string): string {
  const gate = `p AS MATERIALIZED (
      SELECT count(pg_advisory_xact_lock(hashtextextended(t.name, 0))) AS polls
      FROM (SELECT name FROM unnest($poll::text[]) AS t(name) ORDER BY name) t),
    o AS MATERIALIZED (SELECT count(pg_advisory_xact_lock_shared(${queueLock(QUEUE)})) AS queues FROM p),
    l AS MATERIALIZED (
      SELECT ${BARRED} AS barred FROM ichido.workers WHERE worker_id = ANY($worker_id::text[]) AND (SELECT queues FROM o) > 0
        AND ${anyReady(QUEUE, KINDS, from)}
      ORDER BY worker_id FOR KEY SHARE),
    g AS MATERIALIZED (
      SELECT l.barred = 0 AND ichido.lease_is_plain(${QUEUE}, $worker_id::text[], $poll_id::text[]) AS plain
      FROM (SELECT count(*) FILTER (WHERE barred) AS barred FROM l) l),
    `
  return leasePostgres(
    from,
    { with: gate, open: '(SELECT plain FROM g)', left: String(PAYLOADS_BYTES_MAX) },
    leasedPostgres(`${OF_RUN}, poll`),
    'SELECT g.plain, a.* FROM g LEFT JOIN a ON true',
  )
}

/** `poll` is the name of the poll. */
const PLAIN_PARAMS = { ...LEASE_PARAMS, poll: 'text' } as const
/** The first columns of each row. A row with a run also has the columns of `PLAIN_LEASE_ROW`. */
const PLAIN_ROW = { plain: 'flag', job_id: 'text?' } as const

/**
 * A whole lease in one statement. It answers `plain`, and the leases if there are any. It is not plain and changes nothing if the
 * queue is paused or limited, a worker was revoked or drains, or a poll was answered before.
 */
export const leasePlain = statement('lease_plain', {
  params: PLAIN_PARAMS,
  row: PLAIN_ROW,
  postgres: enteringPostgres(''),
  sqlite: [],
})

/** The same from a position on. */
export const leasePlainFrom = statement('lease_plain_from', {
  params: { ...PLAIN_PARAMS, ...FROM_PARAMS },
  row: PLAIN_ROW,
  postgres: enteringPostgres(RESUMED),
  sqlite: [],
})

/** The first runs of each kind, and the first of these: otherwise SQLite would sort all runs of the queue. */
function leaseSqlite(kinds: number): string[] {
  const heads = Array.from(
    { length: kinds },
    (_, i) => `SELECT * FROM (SELECT job_id, priority, fair_tag, bytes FROM ichido.ready
        WHERE queue = $queue AND kind = json_extract($kinds, '$[${i}]') AND ${DUE} ORDER BY ${ORDER} LIMIT $max)`,
  )
  const first = `SELECT job_id, row_number() OVER o AS n, sum(bytes) OVER o AS bytes FROM (
        SELECT * FROM (${heads.join(' UNION ALL ')}) ORDER BY ${ORDER} LIMIT $max)
      WINDOW o AS (ORDER BY ${ORDER} ROWS UNBOUNDED PRECEDING)`
  const taken =
    'r.worker_id = $worker_id AND r.poll_id = $poll_id AND r.queue = $queue AND r.token = $token AND changes() > 0'
  return [
    `INSERT INTO ichido.held (${HELD}) SELECT ${leasedRow(HELD, (column) => `$${column}`, '$queue', 'now_ms()')} FROM ichido.ready r
      WHERE ${STILL_OPEN('$queue', '$limited')} AND r.job_id IN (SELECT job_id FROM (${first}) WHERE n = 1 OR bytes <= $bytes_left)`,
    `DELETE FROM ichido.ready WHERE job_id IN (SELECT r.job_id FROM ichido.held r WHERE ${taken})`,
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT r.job_id, r.n, 'run', r.n, '', '{"state":"' || ${HELD_STATE('r')} || '","attempt":' || r.attempt || '}', now_ms()
      FROM ichido.held r WHERE ${taken}`,
    `SELECT ${LEASED_SQLITE}, ${WAITED} FROM ichido.held r JOIN ichido.jobs j ON j.id = r.job_id WHERE ${taken}`,
  ]
}

/** `limited`: the queue's limit is locked and counted. `bytes_left`: the bytes that payloads may still have. */
const ENTERED_PARAMS = { ...LEASE_PARAMS, limited: 'flag', bytes_left: 'integer' } as const

const full = (kinds: number) =>
  statement('lease_runs', {
    params: ENTERED_PARAMS,
    row: NEW_LEASE_ROW,
    postgres: POSTGRES_FULL,
    sqlite: leaseSqlite(kinds),
  })
const resumed = (kinds: number) =>
  statement('lease_runs_from', {
    params: { ...ENTERED_PARAMS, ...FROM_PARAMS },
    row: NEW_LEASE_ROW,
    postgres: POSTGRES_RESUMED,
    sqlite: leaseSqlite(kinds),
  })

/**
 * Takes the number of kinds. One statement serves all polls: the first runs of the queue go to the first poll, and so on. It
 * leases at least one run, and no more than there is room for. It guards that a run is in `ready` and due, and leaves runs that
 * another transaction has locked.
 */
export const leaseRuns = keptByKinds(full)

/**
 * The same from a position on. A leased run stays in the index until no snapshot can see it, and a scan from the beginning
 * steps over all such runs: 35 ms after 256,000 leases during one dump. SQLite removes them from the index at once.
 */
export const leaseRunsFrom = keptByKinds(resumed)

function keptByKinds<S>(make: (kinds: number) => S): (kinds: number) => S {
  const made = new Map<number, S>()
  return (kinds) => {
    const found = made.get(kinds) ?? make(kinds)
    made.set(kinds, found)
    return found
  }
}
