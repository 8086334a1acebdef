import { statement } from '../statement.ts'
import { EXPIRED } from './retention.ts'

const PUBLISHER = `r.id AS run_id, r.assigned_worker_id AS worker_id, r.lease_id, r.job_id, r.attempt, r.kind,
  r.last_event_n, j.policy`
const HELD = "r.assigned_worker_id = t.worker_id AND r.lease_id = t.lease_id AND r.state || '' = 'RUNNING'"

/**
 * Takes run, worker, lease. Guards the holder and RUNNING. The row locks, taken in the order of the runs, are what orders the
 * events of a job. Answers also with the transaction that the events are going to be of.
 */
export const lockPublishers = statement('lock_publishers', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[]) AS t(run_id, worker_id, lease_id) ORDER BY t.run_id)
    SELECT ${PUBLISHER}, pg_current_xact_id()::text::bigint AS tx
    FROM t JOIN ichido.runs r ON r.id = t.run_id AND ${HELD} JOIN ichido.jobs j ON j.id = r.job_id FOR NO KEY UPDATE OF r`,
  sqlite: `SELECT ${PUBLISHER}, 0 AS tx FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.id = $1 AND r.assigned_worker_id = $2 AND r.lease_id = $3 AND r.state = 'RUNNING'`,
})

const EVENT = 'job_id, n, stage, seq, domain, data, created_at'

/**
 * Takes run, the number of its last event, job, stage, seq, domain, data, each event once, of runs that are locked. Those that
 * are new get the next numbers of their job, in their order, and are answered with; the others change nothing.
 */
export const insertEvents = statement('insert_events', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.*, row_number() OVER (PARTITION BY t.run_id ORDER BY t.i) AS k
      FROM unnest($1::uuid[], $2::bigint[], $3::uuid[], $4::text[], $5::bigint[], $6::text[], $7::text[])
        WITH ORDINALITY AS t(run_id, last_n, job_id, stage, seq, domain, data, i)
      WHERE NOT EXISTS (SELECT 1 FROM ichido.events e
        WHERE e.job_id = t.job_id AND e.stage = t.stage AND e.seq = t.seq AND e.stage <> 'run')),
    m AS (UPDATE ichido.runs r SET last_event_n = t.last_n
      FROM (SELECT run_id, max(last_n + k) AS last_n FROM t GROUP BY run_id) t WHERE r.id = t.run_id)
    INSERT INTO ichido.events (${EVENT})
      SELECT job_id, last_n + k, stage, seq, domain, data, (SELECT now_ms()) FROM t ORDER BY i
    ON CONFLICT (job_id, stage, seq) WHERE stage <> 'run' DO NOTHING
    RETURNING job_id, n, stage, seq, created_at`,
  sqlite: [
    `INSERT INTO ichido.events (${EVENT})
      SELECT $3, last_event_n + 1, $4, $5, $6, $7, now_ms() FROM ichido.runs WHERE id = $1
      ON CONFLICT (job_id, stage, seq) WHERE stage <> 'run' DO NOTHING`,
    'UPDATE ichido.runs SET last_event_n = last_event_n + 1 WHERE id = $1 AND changes() = 1',
    `SELECT e.job_id, e.n, e.stage, e.seq, e.created_at FROM ichido.runs r
      JOIN ichido.events e ON e.job_id = r.job_id AND e.n = r.last_event_n WHERE r.id = $1 AND changes() = 1`,
  ],
})

/** Takes job, stage, seq: those that are stored, and by which transaction. */
export const readPublished = statement('read_published', {
  postgres: `SELECT e.job_id, e.n, e.stage, e.seq, e.created_at, e.tx
    FROM unnest($1::uuid[], $2::text[], $3::bigint[]) AS t(job_id, stage, seq)
    JOIN ichido.events e ON e.job_id = t.job_id AND e.stage = t.stage AND e.seq = t.seq AND e.stage <> 'run'`,
  sqlite: `SELECT job_id, n, stage, seq, created_at, 0 AS tx FROM ichido.events
    WHERE job_id = $1 AND stage = $2 AND seq = $3 AND stage <> 'run'`,
})

/**
 * Takes job, cursor, maximum. That a job was made is told from the job itself: a row for it took a tenth of a submit. Nodes of
 * the version before write one; and it goes with the others when their time is over.
 */
export const readEvents = statement(
  'read_events',
  `SELECT CAST(1 AS bigint) AS n, 'run' AS stage, CAST(1 AS bigint) AS seq, '{"state":"PENDING"}' AS data, j.created_at
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $1 AND CAST($2 AS bigint) < 1
      AND NOT EXISTS (SELECT 1 FROM ichido.events e WHERE e.job_id = $1 AND e.n = 1)
      AND (r.last_event_n = 1 OR EXISTS (SELECT 1 FROM ichido.events e WHERE e.job_id = $1 AND e.n = 2))
    UNION ALL
    SELECT n, stage, seq, data, created_at FROM ichido.events WHERE job_id = $1 AND n > $2
    ORDER BY n LIMIT $3`,
)

/** Takes a job: whose it is, how it stands, and the number of its last event. */
export const readEventEnd = statement(
  'read_event_end',
  `SELECT j.user_id, j.kind, j.policy, r.state, r.attempt, r.last_event_n
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE j.id = $1 AND NOT ${EXPIRED}`,
)

/** Takes a job: the last event, by cursor, of each stage that workers publish in. It goes from stage to stage. */
export const readLastOfStages = statement('read_last_of_stages', {
  postgres: `WITH RECURSIVE s(stage) AS (
      (SELECT stage FROM ichido.events WHERE job_id = $1 AND stage <> 'run' ORDER BY stage LIMIT 1)
      UNION ALL
      SELECT (SELECT e.stage FROM ichido.events e WHERE e.job_id = $1 AND e.stage > s.stage AND e.stage <> 'run'
        ORDER BY e.stage LIMIT 1) FROM s WHERE s.stage IS NOT NULL)
    SELECT e.n, e.stage, e.seq, e.data, e.created_at FROM s CROSS JOIN LATERAL (
      SELECT * FROM ichido.events e WHERE e.job_id = $1 AND e.stage = s.stage AND e.stage <> 'run'
      ORDER BY e.n DESC LIMIT 1) e ORDER BY e.n`,
  sqlite: `SELECT max(n) AS n, stage, seq, data, created_at FROM ichido.events WHERE job_id = $1 AND stage <> 'run'
    GROUP BY stage ORDER BY n`,
})
