import { statement } from '../statement.ts'

/** Takes a hash. Also tells of tokens whose time is up or that were revoked: their callers are answered differently. */
export const findWorkerToken = statement(
  'find_worker_token',
  `SELECT t.token_hash, t.worker_id, t.replaces, w.queues, t.revoked_at, t.expires_at, now_ms() AS now
    FROM ichido.worker_tokens t JOIN ichido.workers w ON w.worker_id = t.worker_id WHERE t.token_hash = $1`,
)

const HELD = 'worker_id, name, queues, revoked_at'

/** Takes a worker. Its tokens change, and nothing else: leases go on meanwhile. */
export const lockWorker = statement('lock_worker', {
  postgres: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $1 FOR NO KEY UPDATE`,
  sqlite: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $1`,
})

/** Takes a worker. Nobody leases for it until the commit. */
export const holdWorker = statement('hold_worker', {
  postgres: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $1 FOR UPDATE`,
  sqlite: `SELECT ${HELD} FROM ichido.workers WHERE worker_id = $1`,
})

/** Takes hash, label, queues (JSON or null), who, life in ms, the worker it is for (or null). */
export const insertEnrollToken = statement('insert_enroll_token', {
  postgres: `INSERT INTO ichido.enroll_tokens (token_hash, label, queues, created_by, created_at, expires_at, worker_id)
    SELECT $1::text, $2::text, $3::text, $4::text, t.now, t.now + $5::bigint, $6::text FROM (SELECT now_ms() AS now) t
    ON CONFLICT (token_hash) DO UPDATE SET token_hash = excluded.token_hash RETURNING expires_at`,
  sqlite: `INSERT INTO ichido.enroll_tokens (token_hash, label, queues, created_by, created_at, expires_at, worker_id)
    SELECT $1, $2, $3, $4, t.now, t.now + $5, $6 FROM (SELECT now_ms() AS now) t WHERE true
    ON CONFLICT (token_hash) DO UPDATE SET token_hash = excluded.token_hash RETURNING expires_at`,
})

/** Takes a hash and the hash of who registers. Finds a token in time that nobody used, or this very registration. */
export const lockEnrollToken = statement('lock_enroll_token', {
  postgres: `SELECT label, queues, worker_id, used_at FROM ichido.enroll_tokens
    WHERE token_hash = $1 AND expires_at > now_ms() AND (used_at IS NULL OR register_hash = $2) FOR UPDATE`,
  sqlite: `SELECT label, queues, worker_id, used_at FROM ichido.enroll_tokens
    WHERE token_hash = $1 AND expires_at > now_ms() AND (used_at IS NULL OR register_hash = $2)`,
})

/** Takes hash, the hash of who registers, worker. Guards: nobody used it before. */
export const useEnrollToken = statement(
  'use_enroll_token',
  `UPDATE ichido.enroll_tokens SET used_at = now_ms(), register_hash = $2, worker_id = $3
    WHERE token_hash = $1 AND used_at IS NULL RETURNING token_hash`,
)

/** Takes worker, name, queues (JSON), meta (JSON or null). A worker that was revoked stays as it is. */
export const putWorker = statement(
  'put_worker',
  `INSERT INTO ichido.workers (worker_id, name, queues, meta, created_at, last_seen_at)
    VALUES ($1, $2, $3, $4, now_ms(), now_ms())
    ON CONFLICT (worker_id) DO UPDATE SET name = excluded.name, queues = excluded.queues, meta = coalesce(excluded.meta, workers.meta),
      last_seen_at = excluded.last_seen_at, detached_at = NULL
    WHERE workers.revoked_at IS NULL RETURNING worker_id`,
)

/** Takes hash, worker, life in ms. */
export const insertWorkerToken = statement('insert_worker_token', {
  postgres: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at)
    SELECT $1::text, $2::text, t.now, t.now + $3::bigint FROM (SELECT now_ms() AS now) t
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING created_at, expires_at`,
  sqlite: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at)
    SELECT $1, $2, t.now, t.now + $3 FROM (SELECT now_ms() AS now) t WHERE true
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING created_at, expires_at`,
})

/** Takes the token that asks, the new hash, life in ms. Guards: the one that asks is in time and not revoked. */
export const renewWorkerToken = statement('renew_worker_token', {
  postgres: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at, replaces)
    SELECT $2::text, worker_id, now_ms(), now_ms() + $3::bigint, token_hash FROM ichido.worker_tokens
    WHERE token_hash = $1 AND revoked_at IS NULL AND expires_at > now_ms()
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING expires_at`,
  sqlite: `INSERT INTO ichido.worker_tokens (token_hash, worker_id, created_at, expires_at, replaces)
    SELECT $2, worker_id, now_ms(), now_ms() + $3, token_hash FROM ichido.worker_tokens
    WHERE token_hash = $1 AND revoked_at IS NULL AND expires_at > now_ms()
    ON CONFLICT (token_hash) DO UPDATE SET worker_id = excluded.worker_id RETURNING expires_at`,
})

/** Takes worker, the token that stays, how much longer in ms the others live at most. */
export const retireTokens = statement('retire_worker_tokens', {
  postgres: `UPDATE ichido.worker_tokens SET expires_at = least(expires_at, now_ms() + $3::bigint)
    WHERE worker_id = $1 AND token_hash <> $2`,
  sqlite: `UPDATE ichido.worker_tokens SET expires_at = min(expires_at, now_ms() + $3)
    WHERE worker_id = $1 AND token_hash <> $2`,
})

/** Takes a renewed token that is used for the first time, and how much longer in ms the one before it lives at most. */
export const retireReplaced = statement('retire_replaced_token', {
  postgres: `UPDATE ichido.worker_tokens SET expires_at = least(expires_at, now_ms() + $2::bigint)
    WHERE token_hash = (SELECT replaces FROM ichido.worker_tokens WHERE token_hash = $1)`,
  sqlite: `UPDATE ichido.worker_tokens SET expires_at = min(expires_at, now_ms() + $2)
    WHERE token_hash = (SELECT replaces FROM ichido.worker_tokens WHERE token_hash = $1)`,
})

export const settleToken = statement(
  'settle_worker_token',
  'UPDATE ichido.worker_tokens SET replaces = NULL WHERE token_hash = $1',
)

/** Takes a worker and for how long in ms a token whose time is up still tells whose it was. */
export const forgetTokens = statement('forget_worker_tokens', {
  postgres: 'DELETE FROM ichido.worker_tokens WHERE worker_id = $1 AND expires_at < now_ms() - $2::bigint',
  sqlite: 'DELETE FROM ichido.worker_tokens WHERE worker_id = $1 AND expires_at < now_ms() - $2',
})

export const revokeWorker = statement(
  'revoke_worker',
  'UPDATE ichido.workers SET revoked_at = now_ms() WHERE worker_id = $1 AND revoked_at IS NULL RETURNING revoked_at',
)

/** Takes a worker; answers with the tokens that worked until now. */
export const revokeWorkerTokens = statement(
  'revoke_worker_tokens',
  `UPDATE ichido.worker_tokens SET revoked_at = now_ms() WHERE worker_id = $1 AND revoked_at IS NULL
    RETURNING CASE WHEN expires_at > now_ms() THEN 1 ELSE 0 END AS worked`,
)

// A run that was confirming before keeps its deadline: its worker has not been heard of since.
const fence = (least: string) => `lease_id = NULL, poll_id = NULL,
      lease_expires_at = ${least}(r.lease_expires_at, now_ms()),
      state = CASE r.state WHEN 'ASSIGNED' THEN 'ORPHANED' ELSE r.state END,
      version = r.version + CASE r.state WHEN 'ASSIGNED' THEN 1 ELSE 0 END,
      last_event_n = r.last_event_n + CASE r.state WHEN 'ASSIGNED' THEN 1 ELSE 0 END,
      continuation_state = CASE r.state WHEN 'ASSIGNED' THEN 'NONE' ELSE 'CONFIRMING' END,
      continuation_check_deadline_at = CASE WHEN r.state = 'ASSIGNED' THEN NULL
        WHEN r.continuation_state = 'CONFIRMING' THEN r.continuation_check_deadline_at
        ELSE now_ms() + coalesce(r.continuation_ms, 1000 * CAST($2 AS bigint)) END`
const HELD_RUN = "r.assigned_worker_id = $1 AND r.state IN ('ASSIGNED', 'RUNNING') AND r.lease_id IS NOT NULL"
const FENCED = 'id, job_id, queue, kind, state, attempt, last_event_n'

/**
 * Takes a worker that is held, and the continuation time in seconds of runs that do not know theirs. What it was
 * assigned goes to the next worker that asks. What it runs is kept from others until the worker's own watchdog has
 * stopped it, but no lease is left by which it could report.
 */
export const fenceRuns = statement('fence_runs', {
  postgres: `WITH c AS MATERIALIZED (SELECT r.id FROM ichido.runs r WHERE ${HELD_RUN} ORDER BY r.id FOR UPDATE)
    UPDATE ichido.runs r SET ${fence('least')}
    FROM c WHERE r.id = c.id RETURNING ${FENCED.replaceAll(/\w+/g, 'r.$&')}`,
  sqlite: `UPDATE ichido.runs AS r SET ${fence('min')}
    WHERE ${HELD_RUN} RETURNING ${FENCED}`,
})

/**
 * Takes worker ids, sorted, and how long ago each was heard of: one that has said goodbye since then is still gone. Whoever
 * another node writes right now is skipped: it has just been seen.
 */
export const seenWorkers = statement('seen_workers', {
  postgres: `WITH c AS MATERIALIZED (
      SELECT w.worker_id, t.ago_ms FROM unnest($1::text[], $2::bigint[]) AS t(id, ago_ms)
      JOIN ichido.workers w ON w.worker_id = t.id ORDER BY w.worker_id FOR NO KEY UPDATE OF w SKIP LOCKED)
    UPDATE ichido.workers w SET last_seen_at = now_ms(),
      detached_at = CASE WHEN w.detached_at > now_ms() - c.ago_ms THEN w.detached_at END
    FROM c WHERE w.worker_id = c.worker_id`,
  sqlite: `UPDATE ichido.workers SET last_seen_at = now_ms(),
      detached_at = CASE WHEN detached_at > now_ms() - $2 THEN detached_at END WHERE worker_id = $1`,
})

/** Takes a worker that stops, and says so. */
export const detachWorker = statement(
  'detach_worker',
  'UPDATE ichido.workers SET detached_at = now_ms(), last_seen_at = now_ms() WHERE worker_id = $1 RETURNING detached_at',
)

/** Takes a worker that is back. */
export const attachWorker = statement(
  'attach_worker',
  'UPDATE ichido.workers SET detached_at = NULL WHERE worker_id = $1 AND detached_at IS NOT NULL',
)

const SHOWN = `w.worker_id, w.name, w.queues, w.meta, w.created_at, w.last_seen_at, w.detached_at, w.revoked_at,
  now_ms() AS now,
  (SELECT max(t.expires_at) FROM ichido.worker_tokens t WHERE t.worker_id = w.worker_id AND t.revoked_at IS NULL)
    AS token_expires_at,
  (SELECT count(*) FROM ichido.runs r WHERE r.assigned_worker_id = w.worker_id AND r.state IN ('ASSIGNED', 'RUNNING')
    AND r.lease_id IS NOT NULL) AS live_leases`

export const findWorker = statement('find_worker', `SELECT ${SHOWN} FROM ichido.workers w WHERE w.worker_id = $1`)

/** Takes a maximum and the worker that the page before ended with, or null. */
export const listWorkers = statement('list_workers', {
  postgres: `SELECT ${SHOWN} FROM ichido.workers w WHERE $2::text IS NULL OR w.worker_id < $2
    ORDER BY w.worker_id DESC LIMIT $1`,
  sqlite: `SELECT ${SHOWN} FROM ichido.workers w WHERE $2 IS NULL OR w.worker_id < $2
    ORDER BY w.worker_id DESC LIMIT $1`,
})

/** Takes for how many ms a worker that was seen counts as online. */
export const countWorkers = statement('count_workers', {
  postgres: `SELECT count(*) AS workers, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
      WHEN detached_at IS NOT NULL THEN 'detached' WHEN last_seen_at > now_ms() - $1::bigint THEN 'online' ELSE 'unseen' END AS state
    FROM ichido.workers GROUP BY 2`,
  sqlite: `SELECT count(*) AS workers, CASE WHEN revoked_at IS NOT NULL THEN 'revoked'
      WHEN detached_at IS NOT NULL THEN 'detached' WHEN last_seen_at > now_ms() - $1 THEN 'online' ELSE 'unseen' END AS state
    FROM ichido.workers GROUP BY 2`,
})
