import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

const PUBLISHER = (
  r: string,
) => `${r}id AS run_id, ${r}assigned_worker_id AS worker_id, ${r}lease_id, ${r}job_id, ${r}attempt,
  ${r}kind, (SELECT j.policy FROM ichido.jobs j WHERE j.id = ${r}job_id) AS policy`

/**
 * Takes run, worker, lease, and how many events there are at most. Guards the holder and RUNNING. The row locks, taken in the
 * order of the runs, are what orders the events of a job. Answers also with the number before, the instant and the transaction.
 * A condition on the state alone has PostgreSQL begin with the runs, and look through all items for each.
 */
export const raisePublishers = statement('raise_publishers', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::text[], $3::text[], $4::bigint[]) AS t(run_id, worker_id, lease_id, count)
      ORDER BY t.run_id)
    UPDATE ichido.runs r SET last_event_n = r.last_event_n + t.count
    FROM t WHERE r.id = t.run_id AND r.state || left(t.lease_id, 0) = 'RUNNING'
      AND r.assigned_worker_id = t.worker_id AND r.lease_id = t.lease_id
    RETURNING ${PUBLISHER('r.')}, r.last_event_n - t.count AS last_n, now_ms() AS now,
      pg_current_xact_id()::text::bigint AS tx`,
  sqlite: [
    `UPDATE ichido.runs SET last_event_n = last_event_n + $4
      WHERE id = $1 AND assigned_worker_id = $2 AND lease_id = $3 AND state = 'RUNNING'`,
    `SELECT ${PUBLISHER('r.')}, r.last_event_n - $4 AS last_n, now_ms() AS now, NULL AS tx
      FROM ichido.runs r WHERE r.id = $1 AND changes() = 1`,
  ],
})

/** Takes a job that is not past its time: its latest run. */
export const readLatestRuns = statement('read_latest_runs', {
  postgres: `SELECT r.id, r.job_id FROM unnest($1::uuid[]) AS t(job_id)
    JOIN ichido.jobs j ON j.id = t.job_id JOIN ichido.runs r ON r.job_id = t.job_id AND r.latest WHERE NOT ${EXPIRED}`,
  sqlite: `SELECT r.id, r.job_id FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $1 AND NOT ${EXPIRED}`,
})

/** Takes run, and how many events there are at most. Guards that it is still the latest. Locks and answers as above. */
export const raiseLatest = statement('raise_latest', {
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($1::uuid[], $2::bigint[]) AS t(run_id, count) ORDER BY t.run_id)
    UPDATE ichido.runs r SET last_event_n = r.last_event_n + t.count FROM t WHERE r.id = t.run_id AND r.latest
    RETURNING ${PUBLISHER('r.')}, r.last_event_n - t.count AS last_n, now_ms() AS now`,
  sqlite: [
    'UPDATE ichido.runs SET last_event_n = last_event_n + $2 WHERE id = $1 AND latest',
    `SELECT ${PUBLISHER('r.')}, r.last_event_n - $2 AS last_n, now_ms() AS now
      FROM ichido.runs r WHERE r.id = $1 AND changes() = 1`,
  ],
})

/** Takes run and number, of those that were raised too far. */
export const lowerPublishers = statement('lower_publishers', {
  postgres: `UPDATE ichido.runs r SET last_event_n = t.n FROM unnest($1::uuid[], $2::bigint[]) AS t(run_id, n)
    WHERE r.id = t.run_id`,
  sqlite: 'UPDATE ichido.runs SET last_event_n = $2 WHERE id = $1',
})

/**
 * Takes job, n, stage, seq, domain, data, instant, of jobs whose runs are locked: nobody else stores events of theirs. One that
 * is there already is refused by its index: PostgreSQL takes three times as long to insert with ON CONFLICT as without.
 */
export const insertEvents = statement('insert_events', {
  postgres: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT * FROM unnest($1::uuid[], $2::bigint[], $3::text[], $4::bigint[], $5::text[], $6::text[], $7::bigint[])`,
  sqlite: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at) VALUES ($1, $2, $3, $4, $5, $6, $7)`,
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
export const readEvents = statement('read_events', eventsAfter('$2'))

/** The same, and a maximum of bytes: those before which so many come are left. Only the events that fit are read. */
export const readEventsWithin = statement(
  'read_events_within',
  eventsAfter(`$2 AND n <= (SELECT max(n) FROM (
      SELECT n, sum(bytes) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM (SELECT n, octet_length(data) AS bytes FROM ichido.events WHERE job_id = $1 AND n > $2 ORDER BY n LIMIT $3) s) p
    WHERE bytes_before IS NULL OR bytes_before < $4)`),
)

function eventsAfter(place: string): string {
  return `SELECT CAST(1 AS bigint) AS n, 'run' AS stage, CAST(1 AS bigint) AS seq, '{"state":"PENDING"}' AS data, j.created_at
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $1 AND CAST($2 AS bigint) < 1
      AND NOT EXISTS (SELECT 1 FROM ichido.events e WHERE e.job_id = $1 AND e.n = 1)
      AND (r.last_event_n = 1 OR EXISTS (SELECT 1 FROM ichido.events e WHERE e.job_id = $1 AND e.n = 2))
    UNION ALL
    SELECT n, stage, seq, data, created_at FROM ichido.events WHERE job_id = $1 AND n > ${place}
    ORDER BY n LIMIT $3`
}

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
