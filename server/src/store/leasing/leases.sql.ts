import { SEQ_PER_ATTEMPT } from '../../core/events/event.ts'
import { DEFAULT_CONTINUATION_SECONDS, parsePolicy } from '../../core/run/job.ts'
import { DURABLY_NOW, MOVES_WRITTEN } from '../runs/runs.sql.ts'
import { statement } from '../statement.ts'

export const READY = "state IN ('PENDING', 'ORPHANED') AND fair_tag IS NOT NULL"
const HELD = "state IN ('ASSIGNED', 'RUNNING')"
const ORDER = 'priority DESC, fair_tag, id'

/**
 * Names the advisory lock of a queue. A lease shares the lock, and a command that pauses or limits the queue takes it alone. A
 * lock on the queue's row would not do: the row may not exist yet, and each lease would have to write its share.
 */
export const queueLock = (queue: string) => `hashtextextended('ichido.queues ' || ${queue}, 0)`

/** The last event of earlier attempts, in any stage if the job declares stages. `stage || ''` leads to the index by number. */
const RUN = (perAttempt: string, staged: string) => `r.id AS run_id, r.job_id, r.attempt, r.retry_count, r.version,
  r.lease_id, r.lease_expires_at, r.leader_epoch, r.queue, r.kind, r.user_id, r.priority, r.fair_tag,
  r.assigned_worker_id AS worker_id, r.poll_id, r.lease_ttl_ms, r.continuation_ms, j.payload, j.policy, j.traceparent,
  CASE WHEN r.attempt > 1 THEN (SELECT e.data FROM ichido.events e
    WHERE e.job_id = r.job_id AND e.seq < (r.attempt - 1) * ${perAttempt}
      AND CASE WHEN ${staged} THEN e.stage || '' <> 'run' ELSE e.stage || '' = 'progress' END
    ORDER BY e.n DESC LIMIT 1) END AS last_progress`
const FIELDS = "'artifact_id', a.id, 'name', a.name, 'sha256', a.sha256, 'size_bytes', a.size_bytes"
// The inputs of the job, not the outputs of an earlier run.
const READY_ARTIFACTS = "FROM ichido.artifacts a WHERE a.job_id = r.job_id AND a.run_id IS NULL AND a.state = 'ready'"
const LEASED_POSTGRES = `${RUN(`bigint '${SEQ_PER_ATTEMPT}'`, `nullif(j.policy, '{}')::json -> 'stages' IS NOT NULL`)},
  CASE WHEN EXISTS (SELECT 1 FROM ichido.artifacts)
    THEN (SELECT json_agg(json_build_object(${FIELDS}) ORDER BY a.name, a.id)::text ${READY_ARTIFACTS}) END AS artifacts`
/** The columns of these and of RUN. */
const LEASED = `run_id, job_id, attempt, retry_count, version, lease_id, lease_expires_at, leader_epoch, queue, kind, user_id,
  priority, fair_tag, worker_id, poll_id, lease_ttl_ms, continuation_ms, payload, policy, traceparent, last_progress, artifacts`
const LEASED_SQLITE = `${RUN(String(SEQ_PER_ATTEMPT), `json_extract(j.policy, '$.stages') IS NOT NULL`)},
  (SELECT json_group_array(json_object(${FIELDS}) ORDER BY a.name, a.id) ${READY_ARTIFACTS}) AS artifacts`

const LEASED_ROW = {
  run_id: 'text',
  job_id: 'text',
  attempt: 'integer',
  retry_count: 'integer',
  version: 'integer',
  lease_id: 'text',
  lease_expires_at: 'integer',
  leader_epoch: 'integer?',
  queue: 'text',
  kind: 'text',
  user_id: 'text',
  priority: 'integer',
  fair_tag: 'integer',
  worker_id: 'text',
  poll_id: 'text',
  lease_ttl_ms: 'integer?',
  continuation_ms: 'integer?',
  payload: 'text',
  policy: { json: parsePolicy },
  traceparent: 'text?',
  last_progress: 'text?',
  artifacts: 'text?',
} as const
export const NEW_LEASE_ROW = { ...LEASED_ROW, waited_ms: 'integer?' } as const

/** Only for a new lease that starts its run: a repeated answer was counted before. */
const WAITED = 'r.started_at - r.run_at AS waited_ms'

/**
 * Answers with the queues that are paused or limited, and with the workers that are revoked.
 * - A poll may be repeated before its first answer has committed, by a node that lost the connection or on another node. The
 *   repeat waits here. Otherwise it would lease other runs, and no worker would know of the first ones.
 * - An open queue stays open until the commit: a command that pauses or limits the queue waits. Other leases do not.
 * - A queue with a limit is locked. A later statement counts the held runs, and sees the leases of the transaction before.
 * - A worker stays as it is until the commit: its revocation waits, and then finds these leases.
 * Every transaction takes these locks in this order, and sorted.
 */
export const enterLease = statement('enter_lease', {
  params: { poll: 'text', queue: 'text', worker_id: 'text' },
  row: { queue: 'text?', paused_at: 'integer?', max_concurrent: 'integer?', revoked: 'text?' },
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
      SELECT worker_id, revoked_at FROM ichido.workers WHERE worker_id = ANY($worker_id::text[]) ORDER BY worker_id FOR KEY SHARE)
    SELECT x.queue, x.paused_at, x.max_concurrent, x.revoked FROM o CROSS JOIN LATERAL (
      SELECT name AS queue, paused_at, max_concurrent, NULL::text AS revoked FROM q
      UNION ALL SELECT NULL, NULL, NULL, worker_id FROM w WHERE revoked_at IS NOT NULL) x`,
  sqlite: `SELECT name AS queue, paused_at, max_concurrent, NULL AS revoked FROM ichido.queues
      WHERE name = $queue AND (paused_at IS NOT NULL OR max_concurrent IS NOT NULL)
    UNION ALL SELECT NULL, NULL, NULL, worker_id FROM ichido.workers WHERE worker_id = $worker_id AND revoked_at IS NOT NULL`,
})

/** A poll whose answer was lost gets the same leases again. */
export const leasedByPoll = statement('leased_by_poll', {
  params: { worker_id: 'text', poll_id: 'text' },
  row: LEASED_ROW,
  postgres: `SELECT ${LEASED_POSTGRES} FROM unnest($worker_id::text[], $poll_id::text[]) AS t(worker_id, poll_id)
    JOIN ichido.runs r ON r.assigned_worker_id = t.worker_id AND r.poll_id = t.poll_id AND r.${HELD}
      AND r.lease_id IS NOT NULL
    JOIN ichido.jobs j ON j.id = r.job_id`,
  sqlite: `SELECT ${LEASED_SQLITE} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.assigned_worker_id = $worker_id AND r.poll_id = $poll_id AND r.${HELD} AND r.lease_id IS NOT NULL`,
})

/**
 * The number of held runs of a locked queue. It reads all held runs: an index by queue would cost every lease more than this
 * costs the few queues with a limit.
 */
export const countHeld = statement('count_held', {
  params: { queue: 'text' },
  row: { held: 'integer' },
  sql: `SELECT count(*) AS held FROM ichido.runs WHERE queue = $queue AND ${HELD}`,
})

/** The kinds after this kind that have ready runs. It hops from kind to kind in the index. */
export const readyKinds = statement('ready_kinds', {
  params: { queue: 'text', after: 'text', max: 'integer' },
  row: { kind: 'text' },
  sql: `WITH RECURSIVE k AS (
      SELECT (SELECT min(kind) FROM ichido.runs WHERE queue = $queue AND kind > $after AND ${READY}) AS kind
      UNION ALL
      SELECT (SELECT min(kind) FROM ichido.runs WHERE queue = $queue AND kind > k.kind AND ${READY}) FROM k WHERE k.kind IS NOT NULL)
    SELECT kind FROM k WHERE kind IS NOT NULL LIMIT $max`,
})

/** The time of the job in ms, or of its queue, or the given default. */
export const timeOf = (column: string, ofJob: string, queue: string, otherwise: string) =>
  `coalesce(${ofJob} * 1000, (SELECT q.${column} * 1000 FROM ichido.queues q WHERE q.name = ${queue}), ${otherwise})`

/**
 * The queue may have been paused or limited while a statement waited for it, and that statement has not seen it. `limited`: the
 * queue had a limit before, which holds until the commit.
 */
const STILL_OPEN = (
  queue: string,
  limited: string,
) => `NOT EXISTS (SELECT 1 FROM ichido.queues q WHERE q.name = ${queue}
          AND (q.paused_at IS NOT NULL OR (q.max_concurrent IS NOT NULL AND NOT ${limited})))`

const NEW_LEASE = (of: {
  start: string
  epoch: string
  now: string
}) => `version = r.version + 1, attempt = r.attempt + 1,
      assigned_at = ${of.now}, state = CASE WHEN ${of.start} IS NULL THEN 'ASSIGNED' ELSE 'RUNNING' END,
      start_id = ${of.start}, started_at = CASE WHEN ${of.start} IS NULL THEN NULL ELSE ${of.now} END,
      leader_epoch = CASE WHEN ${of.start} IS NULL THEN NULL ELSE ${of.epoch} END, last_event_n = r.last_event_n + 1`
export const DEFAULT_CONTINUATION_MS = DEFAULT_CONTINUATION_SECONDS * 1000
export const EPOCH = '(SELECT epoch FROM ichido.leadership WHERE id = 1)'

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
          SELECT 1 FROM ichido.runs WHERE queue = ${queue} AND kind = k.kind AND ${READY} ${from} LIMIT 1) r)`

/** A time of the job's own policy, on PostgreSQL. Most policies are empty. */
export const ofPolicy = (policy: string, column: string) => `(nullif(${policy}, '{}')::json ->> '${column}')::bigint`

/**
 * `gate` has the locks before the scan, the condition that they give, and the number of bytes that payloads may still have.
 */
function leasePostgres(from: string, gate: { with: string; open: string; left: string }, answer: string): string {
  const time = (column: string, otherwise: string) => timeOf(column, ofPolicy('j.policy', column), QUEUE, otherwise)
  const ttl = time('lease_ttl_seconds', 'w.ttl_ms')
  return `WITH w AS MATERIALIZED (
      SELECT t.*, sum(t.max) OVER (ORDER BY t.n) AS upto
      FROM unnest($max::integer[], $worker_id::text[], $poll_id::text[], $token::text[], $lease_ttl_ms::bigint[], $start_id::text[])
        WITH ORDINALITY AS t(max, worker_id, poll_id, token, ttl_ms, start_id, n)),
    ${gate.with}j AS MATERIALIZED (
      SELECT r.place, j.payload, j.policy, j.traceparent, row_number() OVER o AS n,
        sum(octet_length(j.payload)) OVER o AS bytes
      FROM ${kindOf(KINDS)} CROSS JOIN LATERAL (
        SELECT id, job_id, priority, fair_tag, ctid AS place FROM ichido.runs
        WHERE queue = ${QUEUE} AND kind = k.kind AND ${READY} ${from}
        ORDER BY ${ORDER} LIMIT (SELECT max(upto) FROM w) FOR UPDATE SKIP LOCKED) r
        JOIN ichido.jobs j ON j.id = r.job_id
      WHERE ${gate.open} WINDOW o AS (ORDER BY r.priority DESC, r.fair_tag, r.id ROWS UNBOUNDED PRECEDING)),
    m AS (UPDATE ichido.runs r SET ${NEW_LEASE({ start: 'w.start_id', epoch: EPOCH, now: DURABLY_NOW })},
        assigned_worker_id = w.worker_id, poll_id = w.poll_id, lease_id = r.id::text || '.' || w.token,
        lease_ttl_ms = ${ttl}, lease_expires_at = (SELECT now_ms()) + ${ttl},
        continuation_ms = ${time('continuation_seconds', String(DEFAULT_CONTINUATION_MS))}
      FROM j JOIN w ON j.n > w.upto - w.max AND j.n <= w.upto
      WHERE r.ctid = j.place AND (j.n = 1 OR j.bytes <= ${gate.left})
      RETURNING ${LEASED_POSTGRES}, ${WAITED}, r.state, r.last_event_n),
    e AS (${MOVES_WRITTEN})
    ${answer}`
}

/** Only runs of this priority, from this tag on. */
export const RESUMED = 'AND priority = ($from_priority::integer[])[1] AND fair_tag >= ($from_fair_tag::bigint[])[1]'

const ENTERED = { with: '', open: STILL_OPEN(QUEUE, '($limited::boolean[])[1]'), left: '($bytes_left::bigint[])[1]' }
const POSTGRES_FULL = leasePostgres('', ENTERED, `SELECT ${LEASED}, waited_ms FROM m`)
const POSTGRES_RESUMED = leasePostgres(RESUMED, ENTERED, `SELECT ${LEASED}, waited_ms FROM m`)

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
      SELECT revoked_at FROM ichido.workers WHERE worker_id = ANY($worker_id::text[]) AND (SELECT queues FROM o) > 0
        AND ${anyReady(QUEUE, KINDS, from)}
      ORDER BY worker_id FOR KEY SHARE),
    g AS MATERIALIZED (
      SELECT l.revoked = 0 AND ichido.lease_is_plain(${QUEUE}, $worker_id::text[], $poll_id::text[]) AS plain
      FROM (SELECT count(revoked_at) AS revoked FROM l) l),
    `
  return leasePostgres(
    from,
    { with: gate, open: '(SELECT plain FROM g)', left: String(PAYLOADS_BYTES_MAX) },
    `SELECT g.plain, ${LEASED}, waited_ms FROM g LEFT JOIN m ON true`,
  )
}

/** `poll` is the name of the poll. */
const PLAIN_PARAMS = { ...LEASE_PARAMS, poll: 'text' } as const
/** The first columns of each row. A row with a run also has the columns of `NEW_LEASE_ROW`. */
const PLAIN_ROW = { plain: 'flag', run_id: 'text?' } as const

/**
 * A whole lease in one statement. It answers `plain`, and the leases if there are any. It is not plain and changes nothing if the
 * queue is paused or limited, a worker was revoked, or a poll was answered before.
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
    (_, i) => `SELECT * FROM (SELECT id, job_id, priority, fair_tag FROM ichido.runs
        WHERE queue = $queue AND kind = json_extract($kinds, '$[${i}]') AND ${READY} ORDER BY ${ORDER} LIMIT $max)`,
  )
  const first = `SELECT id, row_number() OVER o AS n, sum(bytes) OVER o AS bytes FROM (
        SELECT r.*, octet_length(j.payload) AS bytes FROM (
          SELECT * FROM (${heads.join(' UNION ALL ')}) ORDER BY ${ORDER} LIMIT $max) r JOIN ichido.jobs j ON j.id = r.job_id)
      WINDOW o AS (ORDER BY ${ORDER} ROWS UNBOUNDED PRECEDING)`
  const time = (column: string, otherwise: string) => {
    const ofJob = `(SELECT json_extract(j.policy, '$.${column}') FROM ichido.jobs j WHERE j.id = r.job_id)`
    return timeOf(column, ofJob, '$queue', otherwise)
  }
  const ttl = time('lease_ttl_seconds', '$lease_ttl_ms')
  const ours = 'assigned_worker_id = $worker_id AND poll_id = $poll_id AND queue = $queue'
  return [
    `UPDATE ichido.runs AS r SET ${NEW_LEASE({ start: '$start_id', epoch: EPOCH, now: 'now_ms()' })},
      assigned_worker_id = $worker_id, poll_id = $poll_id, lease_id = id || '.' || $token,
      lease_ttl_ms = ${ttl}, lease_expires_at = now_ms() + ${ttl},
      continuation_ms = ${time('continuation_seconds', String(DEFAULT_CONTINUATION_MS))}
    WHERE ${STILL_OPEN('$queue', '$limited')} AND id IN (SELECT id FROM (${first}) WHERE n = 1 OR bytes <= $bytes_left)`,
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT job_id, last_event_n, 'run', last_event_n, '', '{"state":"' || state || '","attempt":' || attempt || '}', now_ms()
      FROM ichido.runs WHERE ${ours} AND ${HELD} AND lease_id = id || '.' || $token AND changes() > 0`,
    `SELECT ${LEASED_SQLITE}, ${WAITED} FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
      WHERE r.assigned_worker_id = $worker_id AND r.poll_id = $poll_id AND r.queue = $queue AND r.${HELD}
        AND r.lease_id = r.id || '.' || $token
        AND changes() > 0`,
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
 * leases at least one run, and no more than there is room for. It guards that a run is PENDING or ORPHANED, due and of no other
 * worker. A lease_id is `run.token`: it leads to its run without an index on a column that changes with every lease.
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
