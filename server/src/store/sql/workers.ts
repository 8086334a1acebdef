import { statement } from '../statement.ts'

/** Takes a hash. Also tells of tokens whose time is up or that were revoked: their callers are answered differently. */
export const findWorkerToken = statement(
  'find_worker_token',
  `SELECT t.token_hash, t.worker_id, w.queues, t.revoked_at, t.expires_at, now_ms() AS now
    FROM ichido.worker_tokens t JOIN ichido.workers w ON w.worker_id = t.worker_id WHERE t.token_hash = $1`,
)

/**
 * Takes worker ids, sorted; answers with those that are registered and not revoked, and keeps it so until the commit:
 * a revocation waits, and then finds what was leased here. Whoever only notes that a worker was seen goes on.
 */
export const shareWorkers = statement('share_workers', {
  postgres: `SELECT worker_id FROM ichido.workers WHERE worker_id = ANY($1::text[]) AND revoked_at IS NULL
    ORDER BY worker_id FOR KEY SHARE`,
  sqlite: 'SELECT worker_id FROM ichido.workers WHERE worker_id = $1 AND revoked_at IS NULL',
})
