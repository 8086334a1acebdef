import { otherId, type Selects } from '../fill.ts'

/** The jobs of the store of the dashboard, beside which there are `LETTERS` failed jobs that became dead letters. */
export const LETTERS = 10_000
/** Dead letters of one queue, kind and error code are a group. */
const GROUPS = 30
/** No job of this queue ever fails. */
export const CALM_QUEUE = 'queue-9'

const ERRORS = ['OOM', 'DISK_FULL', 'TIMEOUT', 'BAD_INPUT', 'WORKER_LOST', 'UPSTREAM_503', 'NO_CONVERGENCE']

/** A workload for lists: 10 queues, 20 kinds, 100 users, 20 labels, keys for a quarter of the jobs. */
const QUEUES = 10
const KINDS = 20
const USERS = 100
const TEAMS = 20
const WORKERS = 200
/** Each running job has so many events, and so many pieces of its log. */
const EVENTS = 50
const CHUNKS = 20

const DAY_MS = 86_400_000
const LONG_PAYLOAD_BYTES = 8_192
/** One job in so many has a long payload. */
const LONG = 200

/** In each thousand jobs. The other jobs have succeeded. Beside them are the dead letters. */
const SHARES: readonly (readonly [place: string, upTo: number])[] = [
  ['RUNNING', 1],
  ['ASSIGNED', 2],
  ['READY', 17],
  ['DELAYED', 20],
  ['FAILED', 30],
  ['TIMED_OUT', 35],
  ['CANCELED', 55],
]

const errorCode = (n: string) =>
  `CASE ${n} % ${ERRORS.length} ${ERRORS.map((code, i) => `WHEN ${i} THEN '${code}'`).join(' ')} END`
const message = (n: string) =>
  `'The step ' || (${n} % 1000) || ' of this job could not be finished: see the log of the worker'`
const errorOf = (n: string) => `'{"code":"' || ${errorCode(n)} || '","message":"' || ${message(n)} || '"}'`

/** The jobs `d`: where each one is, and what it belongs to. The product scatters all of this over the store. */
function jobsWith(total: number, condition = 'true'): string {
  const apart = Math.floor(total / LETTERS)
  const place = SHARES.map(([name, upTo]) => `WHEN h < ${upTo} ${calm(name)} THEN '${name}'`).join(' ')
  return `(SELECT r.*, CASE WHEN dead THEN 'DEAD' ${place} ELSE 'SUCCEEDED' END AS place,
      'queue-' || CASE WHEN dead THEN g % 9 ELSE n % ${QUEUES} END AS queue,
      'kind-' || CASE WHEN dead THEN g % ${KINDS} ELSE (h + n) % ${KINDS} END AS kind,
      'user-' || ((h * 7 + n) % ${USERS}) AS user_id, 'worker-' || (h % ${WORKERS}) AS worker_id
    FROM (SELECT t.*, ((n * 2654435761) >> 8) % 1000 AS h, n % ${apart} = 0 AND n <= ${apart * LETTERS} AS dead,
        n / ${apart} % ${GROUPS} AS g FROM t) r) d WHERE ${condition}`
}

const calm = (place: string) =>
  ['FAILED', 'TIMED_OUT', 'CANCELED'].includes(place) ? `AND n % ${QUEUES} <> ${QUEUES - 1}` : ''

const ENDED = `ended (job_id, run_no, run_id, user_id, latest, state, attempt, retry_count, version, run_at, fair_tag, created_at,
    worker_id, assigned_at, started_at, finished_at, n, error)`
const ENDED_PLACES = "('DEAD', 'FAILED', 'TIMED_OUT', 'CANCELED', 'SUCCEEDED')"
const HELD_PLACES = "('RUNNING', 'ASSIGNED')"
/** A dead letter has failed in earlier runs, too. */
const EARLIER_RUNS = 2

export function jobRows(total: number): Selects {
  const jobs = (condition?: string) => jobsWith(total, condition)
  const state = `CASE WHEN place = 'DEAD' THEN CASE WHEN g % 7 = 2 THEN 'TIMED_OUT' ELSE 'FAILED' END ELSE place END`
  const failure = `CASE WHEN place = 'DEAD' THEN ${errorOf('g')} WHEN place IN ('FAILED', 'TIMED_OUT') THEN ${errorOf('n')} END`
  const ended = (runNo: string, runId: string, latest: boolean, of: string) => `
    SELECT id, ${runNo}, ${runId}, user_id, ${latest}, ${of}, 1, ${runNo} - 1, 4, ms, ms, ms,
      worker_id, ms + 400, ms + 500, ms + 500 + h * 40, 3, ${failure} FROM `
  const earlier = Array.from({ length: EARLIER_RUNS }, (_, i) => [
    `${ENDED} /* run ${i + 1} */`,
    `${ended(String(i + 1), otherId(i + 1), false, "'FAILED'")}${jobs("place = 'DEAD'")}`,
  ])
  const last = `CASE WHEN place = 'DEAD' THEN ${EARLIER_RUNS + 1} ELSE 1 END`
  return {
    'jobs (id, kind, queue, user_id, payload, policy, priority, labels, estimated_cost_micros, created_at)': `
      SELECT id, kind, queue, user_id, '{"to":"' || user_id || '@example.org","template":"welcome","n":' || n ||
          CASE WHEN n % ${LONG} = 1 THEN ',"text":"${'long '.repeat(LONG_PAYLOAD_BYTES / 5)}"}' ELSE '}' END,
        '{"max_attempts":3}', 0,
        CASE WHEN n % 5 = 0 THEN '{"team":"team-' || (n / 5 % ${TEAMS}) || '"}' END, 0, ms FROM ${jobs()}`,
    'job_labels (name, value, job_id)': `
      SELECT 'team', 'team-' || (n / 5 % ${TEAMS}), id FROM ${jobs('n % 5 = 0')}`,
    [`idempotency_keys (idempotency_key, user_id, operation, request_hash, hash_version, job_id, response_status, response_body,
      created_at, expires_at)`]: `
      SELECT 'key-' || n, user_id, 'submit', 'hash-' || n, 1, id, 201, '{"job_id":"…"}', ms, ms + ${DAY_MS} FROM ${jobs('n % 4 = 0')}`,
    [`ready (job_id, run_id, run_no, queue, kind, user_id, attempt, retry_count, version, priority, run_at, fair_tag, created_at,
      n, bytes)`]: `
      SELECT id, id, 1, queue, kind, user_id, 1, 0, 4, 0, CASE WHEN place = 'DELAYED' THEN $2 + ${DAY_MS} + n ELSE ms END,
        CASE WHEN place = 'READY' THEN ms END, ms, 3, 60 FROM ${jobs("place IN ('READY', 'DELAYED')")}`,
    [`held (job_id, run_id, run_no, queue, kind, user_id, attempt, retry_count, version, priority, run_at, fair_tag, created_at, n,
      worker_id, token, assigned_at, lease_expires_at, lease_ttl_ms, continuation_ms, started_at)`]: `
      SELECT id, id, 1, queue, kind, user_id, 1, 0, 4, 0, ms, ms, ms, ${EVENTS + 3}, worker_id, 'token-' || n, $2 + 0, $2 + ${DAY_MS},
        ${DAY_MS}, ${DAY_MS}, CASE WHEN place = 'RUNNING' THEN $2 + 0 END FROM ${jobs(`place IN ${HELD_PLACES}`)}`,
    [ENDED]: `${ended(last, 'id', true, state)}${jobs(`place IN ${ENDED_PLACES}`)}`,
    ...Object.fromEntries(earlier),
    'dead_letters (job_id, run_id, queue, kind, user_id, error_code, error_message, retry_count, dead_at)': `
      SELECT id, id, queue, kind, user_id, ${errorCode('g')}, ${message('n')}, ${EARLIER_RUNS}, ms + 40500 FROM ${jobs("place = 'DEAD'")}`,
    'results (run_id, job_id, result, created_at)': `
      SELECT id, id, '{"ok":true,"n":' || n || '}', ms + 1000 FROM ${jobs("place = 'SUCCEEDED' AND n % 10 = 3")}`,
    'events (job_id, n, stage, seq, domain, data, created_at)': `
      SELECT id, e.i + 2, 'train', e.i, '', '{"progress":' || e.i || ',"note":"the loss of this step was 0.01"}', ms + e.i * 500
      FROM ${series(EVENTS)} e CROSS JOIN ${jobs("place = 'RUNNING'")}`,
    'run_logs (job_id, run_id, run_no, n, head, stream, chunk, end_bytes, created_at)': `
      SELECT id, id, 1, e.i, e.i = 1, 'stdout', '${'epoch 12 of 90, 4.1 s\\n'.repeat(20)}', e.i * 440, ms + e.i * 500
      FROM ${series(CHUNKS)} e CROSS JOIN ${jobs("place = 'RUNNING'")}`,
  }
}

/** The numbers from 1 to `max`. */
const series = (max: number) =>
  `(WITH RECURSIVE i(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM i WHERE i < ${max}) SELECT i FROM i)`

const DEFINITIONS = 50
const TICKS = 1_000
const AUDITED = 20_000
const WEBHOOKS = 10
const DELIVERIES = 10_000
const RESERVATIONS = 1_000
const SCHEDULE =
  '{"cron":"30 2 * * *","timeZone":"Asia/Tokyo","catchUp":"last","catchUpWindowSeconds":3600,"overlap":"skip","jitterSeconds":0,"startsAtMs":null,"endsAtMs":null}'
/** The largest of these numbers of rows. */
export const OTHER_ROWS = DEFINITIONS * TICKS

/**
 * All that does not grow with the jobs. Only the numbers and ids of `t` matter here, and its ids do not rise with time in
 * a store with few jobs.
 */
export function otherRows(): Selects {
  const definition = otherId(9)
  const first = (count: number) => `t WHERE n <= ${count}`
  return {
    'queues (name, max_concurrent)': `SELECT 'queue-' || n, CASE WHEN n % 2 = 0 THEN 1000 END FROM ${first(QUEUES - 1)}`,
    'workers (worker_id, name, queues, meta, created_at, last_seen_at)': `
      SELECT 'worker-' || n, 'gpu-' || n, '["queue-1","queue-2"]', '{"hostname":"gpu-' || n || '"}', $2 - ${DAY_MS}, $2 + 0 FROM ${first(WORKERS)}`,
    'worker_tokens (token_hash, worker_id, created_at, expires_at)': `
      SELECT 'worker-hash-' || n, 'worker-' || n, $2 - ${DAY_MS}, $2 + ${DAY_MS} FROM ${first(WORKERS)}`,
    'users (user_id, created_at)': `SELECT 'user-' || n, $2 - ${DAY_MS} FROM ${first(USERS - 1)}`,
    'quotas (user_id, custom, max_concurrent, cost_limit_micros, period, updated_at)': `
      SELECT 'user-' || n, true, 500000, CASE WHEN n % 2 = 0 THEN 100000000 END, 'month', $2 - ${DAY_MS} FROM ${first(USERS - 1)}`,
    'job_reservations (reservation_id, user_id, created_at, expires_at)': `
      SELECT ${definition}, 'user-' || (n % ${USERS}), $2 - ${DAY_MS}, $2 + ${DAY_MS} FROM ${first(RESERVATIONS)}`,
    'job_definitions (id, name, kind, queue, payload, policy, schedule, last_tick_at, next_tick_at, created_at, updated_at)': `
      SELECT ${definition}, 'nightly-' || n, 'kind-' || (n % ${KINDS}), 'queue-' || (n % ${QUEUES}), '{"n":1}', '{}',
        '${SCHEDULE}', $2 - 1000, $2 + ${DAY_MS}, $2 - ${DAY_MS}, $2 - ${DAY_MS} FROM ${first(DEFINITIONS)}`,
    'occurrences (definition_id, scheduled_for, outcome, reason, job_id, run_at, created_at, updated_at)': `
      SELECT d.id, $2 - t.n / ${DEFINITIONS} * ${DAY_MS}, CASE WHEN n % 7 = 0 THEN 'skipped' ELSE 'job' END,
        CASE WHEN n % 7 = 0 THEN 'overlap' END, CASE WHEN n % 7 <> 0 THEN t.id END,
        $2 - t.n / ${DEFINITIONS} * ${DAY_MS}, $2 + 0, $2 + 0
      FROM t JOIN ichido.job_definitions d ON d.name = 'nightly-' || (1 + t.n % ${DEFINITIONS}) WHERE t.n <= ${OTHER_ROWS}`,
    'audit (id, actor, action, subject, before, after, created_at)': `
      SELECT id, 'user-' || (n % ${USERS}), CASE n % 4 WHEN 0 THEN 'queue.put' WHEN 1 THEN 'job.cancel' ELSE 'setting.put' END,
        'subject-' || (n % 500), '{"paused":false}', '{"paused":true}', $2 - (${AUDITED} - n) * 60000 FROM ${first(AUDITED)}`,
    'webhooks (id, url, description, events, queue, secret, user_id, created_at, updated_at)': `
      SELECT ${definition}, 'https://hooks.example.org/' || n, 'Team ' || n, '["job.failed"]', 'queue-0', 'whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw',
        'local', $2 + 0, $2 + 0 FROM ${first(WEBHOOKS)}`,
    [`webhook_deliveries (id, webhook_id, type, subject_id, subject_n, payload, state, attempts, failures, last_status, created_at,
      ended_at)`]: `
      SELECT t.id, w.id, 'job.failed', t.id, 1, '{"type":"job.failed"}', CASE WHEN n % 50 = 0 THEN 'dead' ELSE 'delivered' END, 1, 0,
        CASE WHEN n % 50 = 0 THEN 503 ELSE 200 END, $2 - n, $2 + 0
      FROM t JOIN ichido.webhooks w ON w.description = 'Team ' || (1 + n % ${WEBHOOKS}) WHERE t.n <= ${DELIVERIES}`,
    'alerts (id, rule, subject, message, opened_at, closed_at)': `
      SELECT id, 'queue_depth', 'queue-' || n, 'The queue is deep', $2 - n * 60000, $2 - n * 50000 FROM ${first(500)}`,
  }
}
