import { statement } from '../statement.ts'
import { EXPIRED } from './retention.ts'

/** Takes run, worker, lease. Guards the holder and RUNNING; the row lock it takes orders the events of a job. */
export const lockPublisher = statement('lock_publisher', {
  postgres: `SELECT job_id, attempt, kind, last_event_n FROM ichido.runs
    WHERE id = $1 AND assigned_worker_id = $2 AND lease_id = $3 AND state = 'RUNNING' FOR UPDATE`,
  sqlite: `SELECT job_id, attempt, kind, last_event_n FROM ichido.runs
    WHERE id = $1 AND assigned_worker_id = $2 AND lease_id = $3 AND state = 'RUNNING'`,
})

/** Takes job, n, stage, seq, domain, data. An event that is stored already changes nothing and answers no row. */
export const insertEvent = statement(
  'insert_event',
  `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at) VALUES ($1, $2, $3, $4, $5, $6, now_ms())
    ON CONFLICT (job_id, stage, seq) WHERE stage <> 'run' DO NOTHING RETURNING n`,
)

/** Takes run, n: the number that was given out. Only after the insert, so that a repeat leaves no gap. */
export const raiseEventNumber = statement(
  'raise_event_number',
  'UPDATE ichido.runs SET last_event_n = $2 WHERE id = $1',
)

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
  `SELECT j.user_id, r.state, r.last_event_n FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $1 AND NOT ${EXPIRED}`,
)
