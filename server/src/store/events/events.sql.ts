import { parsePolicy } from '../../core/run/job.ts'
import { RUN_STATES } from '../../core/run/run-state.ts'
import { statement } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

const PUBLISHER = (
  r: string,
) => `${r}id AS run_id, ${r}assigned_worker_id AS worker_id, ${r}lease_id, ${r}job_id, ${r}attempt,
  ${r}kind, (SELECT j.policy FROM ichido.jobs j WHERE j.id = ${r}job_id) AS policy`

const PUBLISHER_ROW = {
  run_id: 'text',
  job_id: 'text',
  attempt: 'integer',
  kind: 'text',
  policy: { json: parsePolicy },
  last_n: 'integer',
  now: 'integer',
} as const

/**
 * Makes room for `count` events. Guards the holder and RUNNING. The row locks, taken in the order of the runs, order the events
 * of a job. `last_n` is the number of the last event before. With a condition on the state alone, PostgreSQL would begin with
 * the runs and look through all items for each.
 */
export const raisePublishers = statement('raise_publishers', {
  params: { run_id: 'text', worker_id: 'text', lease_id: 'text', count: 'integer' },
  row: { ...PUBLISHER_ROW, worker_id: 'text', lease_id: 'text', tx: 'integer?' },
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $worker_id::text[], $lease_id::text[], $count::bigint[])
        AS t(run_id, worker_id, lease_id, count)
      ORDER BY t.run_id)
    UPDATE ichido.runs r SET last_event_n = r.last_event_n + t.count
    FROM t WHERE r.id = t.run_id AND r.state || left(t.lease_id, 0) = 'RUNNING'
      AND r.assigned_worker_id = t.worker_id AND r.lease_id = t.lease_id
    RETURNING ${PUBLISHER('r.')}, r.last_event_n - t.count AS last_n, now_ms() AS now,
      pg_current_xact_id()::text::bigint AS tx`,
  sqlite: [
    `UPDATE ichido.runs SET last_event_n = last_event_n + $count
      WHERE id = $run_id AND assigned_worker_id = $worker_id AND lease_id = $lease_id AND state = 'RUNNING'`,
    `SELECT ${PUBLISHER('r.')}, r.last_event_n - $count AS last_n, now_ms() AS now, NULL AS tx
      FROM ichido.runs r WHERE r.id = $run_id AND changes() = 1`,
  ],
})

/** Does not find a job that is past its time. */
export const readLatestRuns = statement('read_latest_runs', {
  params: { job_id: 'text' },
  row: { id: 'text', job_id: 'text' },
  postgres: `SELECT r.id, r.job_id FROM unnest($job_id::uuid[]) AS t(job_id)
    JOIN ichido.jobs j ON j.id = t.job_id JOIN ichido.runs r ON r.job_id = t.job_id AND r.latest WHERE NOT ${EXPIRED}`,
  sqlite: `SELECT r.id, r.job_id FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** Guards that the run is still the latest. Makes room and locks as `raisePublishers` does. */
export const raiseLatest = statement('raise_latest', {
  params: { run_id: 'text', count: 'integer' },
  row: PUBLISHER_ROW,
  postgres: `WITH t AS MATERIALIZED (
      SELECT t.* FROM unnest($run_id::uuid[], $count::bigint[]) AS t(run_id, count) ORDER BY t.run_id)
    UPDATE ichido.runs r SET last_event_n = r.last_event_n + t.count FROM t WHERE r.id = t.run_id AND r.latest
    RETURNING ${PUBLISHER('r.')}, r.last_event_n - t.count AS last_n, now_ms() AS now`,
  sqlite: [
    'UPDATE ichido.runs SET last_event_n = last_event_n + $count WHERE id = $run_id AND latest',
    `SELECT ${PUBLISHER('r.')}, r.last_event_n - $count AS last_n, now_ms() AS now
      FROM ichido.runs r WHERE r.id = $run_id AND changes() = 1`,
  ],
})

/** For runs that were raised too far. */
export const lowerPublishers = statement('lower_publishers', {
  params: { run_id: 'text', n: 'integer' },
  row: {},
  postgres: `UPDATE ichido.runs r SET last_event_n = t.n FROM unnest($run_id::uuid[], $n::bigint[]) AS t(run_id, n)
    WHERE r.id = t.run_id`,
  sqlite: 'UPDATE ichido.runs SET last_event_n = $n WHERE id = $run_id',
})

/**
 * The runs of the jobs are locked, so no other transaction stores events of theirs. The index refuses an event that is stored
 * already: PostgreSQL takes three times as long to insert with ON CONFLICT. The parameters have the names of `StoredEvent`, so
 * that no event is copied to be stored.
 */
export const insertEvents = statement('insert_events', {
  params: {
    jobId: 'text',
    n: 'integer',
    stage: 'text',
    seq: 'integer',
    domain: 'text',
    data: 'text',
    createdAtMs: 'integer',
  },
  row: {},
  postgres: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    SELECT * FROM unnest($jobId::uuid[], $n::bigint[], $stage::text[], $seq::bigint[], $domain::text[], $data::text[],
      $createdAtMs::bigint[])`,
  sqlite: `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
    VALUES ($jobId, $n, $stage, $seq, $domain, $data, $createdAtMs)`,
})

export const readPublished = statement('read_published', {
  params: { job_id: 'text', stage: 'text', seq: 'integer' },
  row: { job_id: 'text', n: 'integer', stage: 'text', seq: 'integer', created_at: 'integer', tx: 'integer' },
  postgres: `SELECT e.job_id, e.n, e.stage, e.seq, e.created_at, e.tx
    FROM unnest($job_id::uuid[], $stage::text[], $seq::bigint[]) AS t(job_id, stage, seq)
    JOIN ichido.events e ON e.job_id = t.job_id AND e.stage = t.stage AND e.seq = t.seq AND e.stage <> 'run'`,
  sqlite: `SELECT job_id, n, stage, seq, created_at, 0 AS tx FROM ichido.events
    WHERE job_id = $job_id AND stage = $stage AND seq = $seq AND stage <> 'run'`,
})

const EVENT_ROW = { n: 'integer', stage: 'text', seq: 'integer', data: 'text', created_at: 'integer' } as const

/**
 * The first event of a job is derived from the job: a row for it took a tenth of a submit. Nodes of the version before write
 * the row, and retention removes it with the others.
 */
export const readEvents = statement('read_events', {
  params: { job_id: 'text', after: 'integer', max: 'integer' },
  row: EVENT_ROW,
  sql: eventsAfter('$after'),
})

/** Reads only the events that begin within the first `bytes_max` bytes. */
export const readEventsWithin = statement('read_events_within', {
  params: { job_id: 'text', after: 'integer', max: 'integer', bytes_max: 'integer' },
  row: EVENT_ROW,
  sql: eventsAfter(`$after AND n <= (SELECT max(n) FROM (
      SELECT n, sum(bytes) OVER (ORDER BY n ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM (SELECT n, octet_length(data) AS bytes FROM ichido.events WHERE job_id = $job_id AND n > $after
        ORDER BY n LIMIT $max) s) p
    WHERE bytes_before IS NULL OR bytes_before < $bytes_max)`),
})

function eventsAfter(place: string): string {
  return `SELECT CAST(1 AS bigint) AS n, 'run' AS stage, CAST(1 AS bigint) AS seq, '{"state":"PENDING"}' AS data, j.created_at
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $job_id AND CAST($after AS bigint) < 1
      AND NOT EXISTS (SELECT 1 FROM ichido.events e WHERE e.job_id = $job_id AND e.n = 1)
      AND (r.last_event_n = 1 OR EXISTS (SELECT 1 FROM ichido.events e WHERE e.job_id = $job_id AND e.n = 2))
    UNION ALL
    SELECT n, stage, seq, data, created_at FROM ichido.events WHERE job_id = $job_id AND n > ${place}
    ORDER BY n LIMIT $max`
}

/** The policy stays text: most readers of events do not need it. */
export const readEventEnd = statement('read_event_end', {
  params: { job_id: 'text' },
  row: {
    user_id: 'text',
    kind: 'text',
    policy: 'text',
    state: { oneOf: RUN_STATES },
    attempt: 'integer',
    last_event_n: 'integer',
  },
  sql: `SELECT j.user_id, j.kind, j.policy, r.state, r.attempt, r.last_event_n
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

/** Reads the last event, by cursor, of each stage that workers publish in. Goes from stage to stage along the index. */
export const readLastOfStages = statement('read_last_of_stages', {
  params: { job_id: 'text' },
  row: EVENT_ROW,
  postgres: `WITH RECURSIVE s(stage) AS (
      (SELECT stage FROM ichido.events WHERE job_id = $job_id AND stage <> 'run' ORDER BY stage LIMIT 1)
      UNION ALL
      SELECT (SELECT e.stage FROM ichido.events e WHERE e.job_id = $job_id AND e.stage > s.stage AND e.stage <> 'run'
        ORDER BY e.stage LIMIT 1) FROM s WHERE s.stage IS NOT NULL)
    SELECT e.n, e.stage, e.seq, e.data, e.created_at FROM s CROSS JOIN LATERAL (
      SELECT * FROM ichido.events e WHERE e.job_id = $job_id AND e.stage = s.stage AND e.stage <> 'run'
      ORDER BY e.n DESC LIMIT 1) e ORDER BY e.n`,
  sqlite: `SELECT max(n) AS n, stage, seq, data, created_at FROM ichido.events WHERE job_id = $job_id AND stage <> 'run'
    GROUP BY stage ORDER BY n`,
})
