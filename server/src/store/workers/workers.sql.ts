import { type Check, isListOf, isNumber, isObjectOf, isText, orNull, stored } from '../../core/json/stored-json.ts'
import { IN_LOCK_ORDER } from '../runs/runs.sql.ts'
import { statement } from '../statement.ts'

/** The queues that a worker may lease from; null: all of them. */
export type Queues = readonly string[] | null

const queues = { json: stored<Queues>('queues', orNull(isListOf(isText))) } as const

/** Also finds tokens that expired or were revoked: their callers get different answers. */
export const findWorkerToken = statement('find_worker_token', {
  params: { token_hash: 'text' },
  row: {
    token_hash: 'text',
    worker_id: 'text',
    replaces: 'text?',
    queues,
    revoked_at: 'integer?',
    expires_at: 'integer',
    now: 'integer',
  },
  sql: `SELECT t.token_hash, t.worker_id, t.replaces, w.queues, t.revoked_at, t.expires_at, now_ms() AS now
    FROM ichido.worker_tokens t JOIN ichido.workers w ON w.worker_id = t.worker_id WHERE t.token_hash = $token_hash`,
})

const HELD = 'worker_id, name, queues, revoked_at'
const HELD_ROW = { worker_id: 'text', name: 'text', queues, revoked_at: 'integer?' } as const

/** For a change of the worker's tokens alone: leases go on meanwhile. */
export const lockWorker = statement('lock_worker', {
  params: { worker_id: 'text' },
  row: HELD_ROW,
  postgres: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $worker_id FOR NO KEY UPDATE`,
  sqlite: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $worker_id`,
})

/** The worker leases nothing until the commit. */
export const holdWorker = statement('hold_worker', {
  params: { worker_id: 'text' },
  row: HELD_ROW,
  postgres: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $worker_id FOR UPDATE`,
  sqlite: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $worker_id`,
})

/** `queues` is JSON. `worker_id` is the worker that the token is for; null: a new one. */
export const insertEnrollToken = statement('insert_enroll_token', {
  params: {
    token_hash: 'text',
    label: 'text?',
    queues: 'text?',
    created_by: 'text',
    ttl_ms: 'integer',
    worker_id: 'text?',
  },
  row: { expires_at: 'integer' },
  postgres: `INSERT INTO ichido.enroll_tokens (token_hash, label, queues, created_by, created_at, expires_at, worker_id)
    SELECT $token_hash::text, $label::text, $queues::text, $created_by::text, t.now, t.now + $ttl_ms::bigint, $worker_id::text FROM (SELECT now_ms() AS now) t
    ON CONFLICT (token_hash) DO UPDATE SET token_hash = excluded.token_hash RETURNING expires_at`,
  sqlite: `INSERT INTO ichido.enroll_tokens (token_hash, label, queues, created_by, created_at, expires_at, worker_id)
    SELECT $token_hash, $label, $queues, $created_by, t.now, t.now + $ttl_ms, $worker_id FROM (SELECT now_ms() AS now) t WHERE true
    ON CONFLICT (token_hash) DO UPDATE SET token_hash = excluded.token_hash RETURNING expires_at`,
})

/** Finds a token that has not expired and was not used, or was used by this very registration. */
export const lockEnrollToken = statement('lock_enroll_token', {
  params: { token_hash: 'text', register_hash: 'text' },
  row: { label: 'text?', queues, worker_id: 'text?', used_at: 'integer?' },
  postgres: `SELECT label, queues, worker_id, used_at FROM ichido.enroll_tokens
    WHERE token_hash = $token_hash AND expires_at > now_ms() AND (used_at IS NULL OR register_hash = $register_hash) FOR UPDATE`,
  sqlite: `SELECT label, queues, worker_id, used_at FROM ichido.enroll_tokens
    WHERE token_hash = $token_hash AND expires_at > now_ms() AND (used_at IS NULL OR register_hash = $register_hash)`,
})

/** Guards that the token was not used before. */
export const useEnrollToken = statement('use_enroll_token', {
  params: { token_hash: 'text', register_hash: 'text', worker_id: 'text' },
  row: { token_hash: 'text' },
  sql: `UPDATE ichido.enroll_tokens SET used_at = now_ms(), register_hash = $register_hash, worker_id = $worker_id
    WHERE token_hash = $token_hash AND used_at IS NULL RETURNING token_hash`,
})

/** `queues` and `meta` are JSON. A worker that was revoked stays as it is. */
export const putWorker = statement('put_worker', {
  params: { worker_id: 'text', name: 'text', queues: 'text', meta: 'text?' },
  row: { worker_id: 'text' },
  sql: `INSERT INTO ichido.workers (worker_id, name, queues, meta, created_at, last_seen_at)
    VALUES ($worker_id, $name, $queues, $meta, now_ms(), now_ms())
    ON CONFLICT (worker_id) DO UPDATE SET name = excluded.name, queues = excluded.queues, meta = coalesce(excluded.meta, workers.meta),
      last_seen_at = excluded.last_seen_at, detached_at = NULL
    WHERE workers.revoked_at IS NULL RETURNING worker_id`,
})

export const insertWorkerToken = statement('insert_worker_token', {
  params: { token_hash: 'text', worker_id: 'text', ttl_ms: 'integer' },
  row: { created_at: 'integer', expires_at: 'integer' },
  postgres: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at)
    SELECT $token_hash::text, $worker_id::text, t.now, t.now + $ttl_ms::bigint FROM (SELECT now_ms() AS now) t
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING created_at, expires_at`,
  sqlite: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at)
    SELECT $token_hash, $worker_id, t.now, t.now + $ttl_ms FROM (SELECT now_ms() AS now) t WHERE true
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING created_at, expires_at`,
})

/** Guards that the token that asks has not expired and was not revoked. */
export const renewWorkerToken = statement('renew_worker_token', {
  params: { token_hash: 'text', new_token_hash: 'text', ttl_ms: 'integer' },
  row: { expires_at: 'integer' },
  postgres: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at, replaces)
    SELECT $new_token_hash::text, worker_id, now_ms(), now_ms() + $ttl_ms::bigint, token_hash FROM ichido.worker_tokens
    WHERE token_hash = $token_hash AND revoked_at IS NULL AND expires_at > now_ms()
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING expires_at`,
  sqlite: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at, replaces)
    SELECT $new_token_hash, worker_id, now_ms(), now_ms() + $ttl_ms, token_hash FROM ichido.worker_tokens
    WHERE token_hash = $token_hash AND revoked_at IS NULL AND expires_at > now_ms()
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING expires_at`,
})

/** `token_hash` stays; the worker's other tokens live for `grace_ms` at most. */
export const retireTokens = statement('retire_worker_tokens', {
  params: { worker_id: 'text', token_hash: 'text', grace_ms: 'integer' },
  row: {},
  postgres: `UPDATE ichido.worker_tokens SET expires_at = least(expires_at, now_ms() + $grace_ms::bigint)
    WHERE worker_id = $worker_id AND token_hash <> $token_hash`,
  sqlite: `UPDATE ichido.worker_tokens SET expires_at = min(expires_at, now_ms() + $grace_ms)
    WHERE worker_id = $worker_id AND token_hash <> $token_hash`,
})

/** For the first use of a renewed token: the token before it lives for `grace_ms` at most. */
export const retireReplaced = statement('retire_replaced_token', {
  params: { token_hash: 'text', grace_ms: 'integer' },
  row: {},
  postgres: `UPDATE ichido.worker_tokens SET expires_at = least(expires_at, now_ms() + $grace_ms::bigint)
    WHERE token_hash = (SELECT replaces FROM ichido.worker_tokens WHERE token_hash = $token_hash)`,
  sqlite: `UPDATE ichido.worker_tokens SET expires_at = min(expires_at, now_ms() + $grace_ms)
    WHERE token_hash = (SELECT replaces FROM ichido.worker_tokens WHERE token_hash = $token_hash)`,
})

export const settleToken = statement('settle_worker_token', {
  params: { token_hash: 'text' },
  row: {},
  sql: 'UPDATE ichido.worker_tokens SET replaces = NULL WHERE token_hash = $token_hash',
})

/** For `keep_ms` an expired token still tells which worker it belonged to. */
export const forgetTokens = statement('forget_worker_tokens', {
  params: { worker_id: 'text', keep_ms: 'integer' },
  row: {},
  postgres:
    'DELETE FROM ichido.worker_tokens WHERE worker_id = $worker_id AND expires_at < now_ms() - $keep_ms::bigint',
  sqlite: 'DELETE FROM ichido.worker_tokens WHERE worker_id = $worker_id AND expires_at < now_ms() - $keep_ms',
})

export const revokeWorker = statement('revoke_worker', {
  params: { worker_id: 'text' },
  row: { revoked_at: 'integer' },
  sql: 'UPDATE ichido.workers SET revoked_at = now_ms() WHERE worker_id = $worker_id AND revoked_at IS NULL RETURNING revoked_at',
})

/** `worked` says that the token was valid until now. */
export const revokeWorkerTokens = statement('revoke_worker_tokens', {
  params: { worker_id: 'text' },
  row: { worked: 'flag' },
  sql: `UPDATE ichido.worker_tokens SET revoked_at = now_ms() WHERE worker_id = $worker_id AND revoked_at IS NULL
    RETURNING CASE WHEN expires_at > now_ms() THEN 1 ELSE 0 END AS worked`,
})

/**
 * The worker is locked. It has no lease left to report with. Runs that it has started are kept from other workers until its own
 * watchdog has stopped them. A run that was confirming before keeps its deadline: its worker has not been heard of since.
 */
export const fenceRuns = statement('fence_runs', {
  params: { worker_id: 'text' },
  row: { job_id: 'text', started_at: 'integer?' },
  postgres: `WITH c AS MATERIALIZED (
      SELECT job_id FROM ichido.held WHERE worker_id = $worker_id AND token IS NOT NULL ${IN_LOCK_ORDER} FOR UPDATE)
    UPDATE ichido.held r SET ${fence('least')} FROM c WHERE by_key(r.job_id, c.job_id) RETURNING r.job_id, r.started_at`,
  sqlite: `UPDATE ichido.held AS r SET ${fence('min')} WHERE r.worker_id = $worker_id AND r.token IS NOT NULL
    RETURNING job_id, started_at`,
})

function fence(least: string): string {
  return `token = NULL, poll_id = NULL, lease_expires_at = ${least}(r.lease_expires_at, now_ms()),
      deadline_at = CASE WHEN r.started_at IS NOT NULL THEN coalesce(r.deadline_at, now_ms() + r.continuation_ms) END`
}

/**
 * The workers are sorted. `ago_ms` is the time since the worker was heard of: a worker that has detached since then stays
 * detached. A worker whose row another node writes right now is skipped: that node has just seen it. It answers whether each
 * worker drains.
 */
export const seenWorkers = statement('seen_workers', {
  params: { worker_id: 'text', ago_ms: 'integer' },
  row: { worker_id: 'text', drains: 'flag' },
  postgres: `WITH c AS MATERIALIZED (
      SELECT w.worker_id, t.ago_ms FROM unnest($worker_id::text[], $ago_ms::bigint[]) AS t(id, ago_ms)
      JOIN ichido.workers w ON w.worker_id = t.id ORDER BY w.worker_id FOR NO KEY UPDATE OF w SKIP LOCKED)
    UPDATE ichido.workers w SET last_seen_at = now_ms(),
      detached_at = CASE WHEN w.detached_at > now_ms() - c.ago_ms THEN w.detached_at END
    FROM c WHERE w.worker_id = c.worker_id RETURNING w.worker_id, w.draining_since IS NOT NULL AS drains`,
  sqlite: `UPDATE ichido.workers SET last_seen_at = now_ms(),
      detached_at = CASE WHEN detached_at > now_ms() - $ago_ms THEN detached_at END WHERE worker_id = $worker_id
    RETURNING worker_id, draining_since IS NOT NULL AS drains`,
})

/** Guards that the worker does not drain yet. */
export const drainWorker = statement('drain_worker', {
  params: { worker_id: 'text' },
  row: { worker_id: 'text' },
  sql: `UPDATE ichido.workers SET draining_since = now_ms()
    WHERE worker_id = $worker_id AND draining_since IS NULL AND revoked_at IS NULL RETURNING worker_id`,
})

/** Guards that the worker drains. */
export const resumeWorker = statement('resume_worker', {
  params: { worker_id: 'text' },
  row: { worker_id: 'text' },
  sql: `UPDATE ichido.workers SET draining_since = NULL
    WHERE worker_id = $worker_id AND draining_since IS NOT NULL AND revoked_at IS NULL RETURNING worker_id`,
})

export const detachWorker = statement('detach_worker', {
  params: { worker_id: 'text' },
  row: { detached_at: 'integer' },
  sql: 'UPDATE ichido.workers SET detached_at = now_ms(), last_seen_at = now_ms() WHERE worker_id = $worker_id RETURNING detached_at',
})

/** `meta` is JSON; null: it stays. */
export const attachWorker = statement('attach_worker', {
  params: { worker_id: 'text', meta: 'text?' },
  row: {},
  sql: `UPDATE ichido.workers SET detached_at = NULL, meta = coalesce(CAST($meta AS text), meta)
    WHERE worker_id = $worker_id AND (detached_at IS NOT NULL OR CAST($meta AS text) IS NOT NULL)`,
})

/** As many of its runs are shown, those that it has held longest first. */
const HOLDS_MAX = 20
const holds = (
  array: string,
  object: string,
) => `(SELECT ${array}(${object}('job_id', h.job_id, 'kind', h.kind, 'queue', h.queue,
      'attempt', h.attempt, 'assigned_at', h.assigned_at, 'started_at', h.started_at) ORDER BY h.assigned_at, h.job_id)
    FROM (SELECT r.job_id, r.kind, r.queue, r.attempt, r.assigned_at, r.started_at FROM ichido.held r
      WHERE r.worker_id = w.worker_id AND r.token IS NOT NULL ORDER BY r.assigned_at, r.job_id LIMIT ${HOLDS_MAX}) h)`

export interface HeldByWorker {
  job_id: string
  kind: string
  queue: string
  attempt: number
  assigned_at: number
  started_at: number | null
}

const isHeld: Check<HeldByWorker> = isObjectOf<HeldByWorker>({
  job_id: isText,
  kind: isText,
  queue: isText,
  attempt: isNumber,
  assigned_at: isNumber,
  started_at: orNull(isNumber),
})

const SHOWN = `w.worker_id, w.name, w.queues, w.meta, w.created_at, w.last_seen_at, w.detached_at, w.draining_since, w.revoked_at,
  now_ms() AS now,
  (SELECT max(t.expires_at) FROM ichido.worker_tokens t WHERE t.worker_id = w.worker_id AND t.revoked_at IS NULL)
    AS token_expires_at,
  (SELECT count(*) FROM ichido.held r WHERE r.worker_id = w.worker_id AND r.token IS NOT NULL) AS live_leases`
const SHOWN_POSTGRES = `${SHOWN}, coalesce(${holds('json_agg', 'json_build_object')}::text, '[]') AS holds`
const SHOWN_SQLITE = `${SHOWN}, ${holds('json_group_array', 'json_object')} AS holds`
const SHOWN_ROW = {
  worker_id: 'text',
  name: 'text',
  queues,
  meta: 'text?',
  created_at: 'integer',
  last_seen_at: 'integer?',
  detached_at: 'integer?',
  draining_since: 'integer?',
  revoked_at: 'integer?',
  now: 'integer',
  token_expires_at: 'integer?',
  live_leases: 'integer',
  holds: { json: stored('runs of a worker', isListOf(isHeld)) },
} as const

export const findWorker = statement('find_worker', {
  params: { worker_id: 'text' },
  row: SHOWN_ROW,
  postgres: `SELECT ${SHOWN_POSTGRES} FROM ichido.workers w WHERE w.worker_id = $worker_id`,
  sqlite: `SELECT ${SHOWN_SQLITE} FROM ichido.workers w WHERE w.worker_id = $worker_id`,
})

/** `after` is the last worker of the page before, or null. */
export const listWorkers = statement('list_workers', {
  params: { max: 'integer', after: 'text?' },
  row: SHOWN_ROW,
  postgres: `SELECT ${SHOWN_POSTGRES} FROM ichido.workers w WHERE $after::text IS NULL OR w.worker_id < $after
    ORDER BY w.worker_id DESC LIMIT $max`,
  sqlite: `SELECT ${SHOWN_SQLITE} FROM ichido.workers w WHERE $after IS NULL OR w.worker_id < $after
    ORDER BY w.worker_id DESC LIMIT $max`,
})

/** A worker counts as online for `online_ms` after it was seen. */
export const countWorkers = statement('count_workers', {
  params: { online_ms: 'integer' },
  row: { workers: 'integer', state: 'text' },
  postgres: `SELECT count(*) AS workers, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
      WHEN detached_at IS NOT NULL THEN 'detached' WHEN last_seen_at > now_ms() - $online_ms::bigint THEN 'online' ELSE 'unseen' END AS state
    FROM ichido.workers GROUP BY 2`,
  sqlite: `SELECT count(*) AS workers, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
      WHEN detached_at IS NOT NULL THEN 'detached' WHEN last_seen_at > now_ms() - $online_ms THEN 'online' ELSE 'unseen' END AS state
    FROM ichido.workers GROUP BY 2`,
})
