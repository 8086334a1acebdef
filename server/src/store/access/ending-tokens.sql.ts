import { statement } from '../statement.ts'

/** A token that is made for a day or less is meant to end. */
const WATCHED_MIN_MS = 24 * 3_600_000

/**
 * Ends within so many ms, and has less than a quarter of its life left: workers renew their tokens, which live for 7 days, after half of it.
 * One that has ended is not ending any more.
 */
const ENDING = `t.revoked_at IS NULL AND t.expires_at > (SELECT now_ms()) AND t.expires_at < (SELECT now_ms()) + CAST($within_ms AS bigint)
  AND t.expires_at - t.created_at > ${WATCHED_MIN_MS} AND 4 * (t.expires_at - (SELECT now_ms())) < t.expires_at - t.created_at`

/** The tokens that end first. */
export const readEndingTokens = statement('read_ending_tokens', {
  params: { within_ms: 'integer', max: 'integer' },
  row: { id: 'text', name: 'text', owner: 'text', expires_at: 'integer' },
  sql: `SELECT t.token_id AS id, t.name, t.user_id AS owner, t.expires_at FROM ichido.api_tokens t WHERE ${ENDING}
    ORDER BY t.expires_at LIMIT $max`,
})

/** The same of workers that were heard of within a day, have not stopped, and have no newer token. */
export const readEndingWorkerTokens = statement('read_ending_worker_tokens', {
  params: { within_ms: 'integer', max: 'integer' },
  row: { id: 'text', name: 'text', expires_at: 'integer' },
  sql: `SELECT w.worker_id AS id, w.name, t.expires_at FROM ichido.workers w JOIN ichido.worker_tokens t ON t.worker_id = w.worker_id
    WHERE w.revoked_at IS NULL AND w.detached_at IS NULL AND w.last_seen_at > (SELECT now_ms()) - 86400000 AND ${ENDING}
      AND NOT EXISTS (SELECT 1 FROM ichido.worker_tokens n
        WHERE n.worker_id = w.worker_id AND n.expires_at > t.expires_at AND n.revoked_at IS NULL)
    ORDER BY t.expires_at LIMIT $max`,
})
