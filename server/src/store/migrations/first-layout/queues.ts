import type { Ddl } from '../migration.ts'

export const queues: readonly Ddl[] = [
  // `fatal_error_codes` is a JSON list of the error codes that are not retried; null: every error code is.
  `CREATE TABLE ichido.queues (
    name text PRIMARY KEY,
    paused_at bigint,
    max_concurrent integer,
    lease_ttl_seconds integer,
    continuation_seconds integer,
    result_ttl_seconds integer,
    fatal_error_codes text
  )`,

  // `tag` is the tag that was last leased in the queue: nodes give new runs tags behind it.
  `CREATE TABLE ichido.queue_times (
    queue text NOT NULL,
    priority integer NOT NULL,
    tag bigint NOT NULL,
    updated_at bigint NOT NULL,
    PRIMARY KEY (queue, priority)
  )`,

  // A lease in one statement waits for locks, and the rows may have changed since the statement's snapshot. A volatile function
  // takes a newer snapshot.
  {
    postgres: `CREATE FUNCTION ichido.lease_is_plain(queue text, workers text[], polls text[]) RETURNS boolean
      LANGUAGE plpgsql VOLATILE AS $$
      BEGIN
        RETURN NOT EXISTS (SELECT 1 FROM ichido.queues q
            WHERE q.name = queue AND (q.paused_at IS NOT NULL OR q.max_concurrent IS NOT NULL))
          AND NOT EXISTS (SELECT 1 FROM unnest(workers, polls) AS t(worker_id, poll_id) CROSS JOIN LATERAL (
            SELECT 1 FROM ichido.held h WHERE h.worker_id = t.worker_id AND h.poll_id = t.poll_id
              AND h.token IS NOT NULL LIMIT 1) h);
      END $$`,
  },
]
