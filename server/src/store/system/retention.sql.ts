import { FREE } from '../dead-letters/redrives.sql.ts'
import { ARTIFACT_FREED } from '../limits/bytes.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from './leadership.sql.ts'

/**
 * What is past its time. Conditions are scalar subqueries, not EXISTS or joins: PostgreSQL would answer those by reading
 * whole tables for a page of jobs.
 */

const NO_LETTER = '(SELECT d.job_id FROM ichido.dead_letters d WHERE d.job_id = j.id) IS NULL'

/** Of a job `j` whose latest run is `r`: its queue's time for results is over. */
const OUTLIVED = `coalesce(r.finished_at + 1000 * CAST((SELECT q.result_ttl_seconds FROM ichido.queues q
  WHERE q.name = j.queue AND q.result_ttl_seconds > 0) AS bigint) <= now_ms(), false)`

/** Gone for whoever reads, whether or not it has been removed yet. A dead letter is parked: it has not ended for good. */
export const EXPIRED = `(${OUTLIVED} AND ${NO_LETTER})`

const NO_KEY = '(SELECT k.job_id FROM ichido.idempotency_keys k WHERE k.job_id = j.id) IS NULL'
/** A job is replaced once: what took its place stands for that as long as it is there itself. */
const NO_PREDECESSOR = '(SELECT p.id FROM ichido.jobs p WHERE p.id = j.replaces_job_id) IS NULL'
const NOT_IN_REDRIVE = `coalesce((SELECT ${FREE} FROM ichido.dead_letters d WHERE d.job_id = j.id), true)`
const ENDED = "r.state IN ('SUCCEEDED', 'FAILED', 'TIMED_OUT', 'CANCELED')"

/** Takes the ages, in ms, at which ended jobs and dead letters go (null: never). A job that a key names stays with it. */
const due = (jobAge: string, letterAge: string) => `(${ENDED} AND ${NO_PREDECESSOR}
  AND CASE (SELECT CASE WHEN d.dead_at <= now_ms() - CAST(${letterAge} AS bigint) AND ${FREE} THEN 1 ELSE 0 END
      FROM ichido.dead_letters d WHERE d.job_id = j.id)
    WHEN 1 THEN ${NO_KEY}
    WHEN 0 THEN false
    ELSE ${OUTLIVED} OR coalesce(r.finished_at <= now_ms() - CAST(${jobAge} AS bigint), false) AND ${NO_KEY} END)`

// As in lists: held to this path, or PostgreSQL merges the two orders of ids and reads all runs before the page's first.
const LATEST = 'r.job_id = coalesce(j.id, j.id) AND r.latest'

/**
 * Takes the job after which to go on, the one to stop before, a maximum and both ages. Ended jobs are found by going through
 * jobs in the order of their ids, which is that of their making, and not by an index on when they ended: that one would be
 * written by every run that ends. What is older than its retention has mostly been removed, so there is little to go through.
 */
export const pageOfJobs = statement(
  'page_of_jobs',
  `SELECT j.id, ${due('$4', '$5')} AS due FROM ichido.jobs j CROSS JOIN ichido.runs r
    WHERE ${LATEST} AND j.id > $1 AND j.id < $2 ORDER BY j.id LIMIT $3`,
)

/** The same of one queue, which stands last. */
export const pageOfQueue = statement(
  'page_of_queue',
  `SELECT j.id, ${due('$4', '$5')} AS due FROM ichido.jobs j CROSS JOIN ichido.runs r
    WHERE ${LATEST} AND j.queue = $6 AND j.id > $1 AND j.id < $2 ORDER BY j.id LIMIT $3`,
)

/** Queues whose results go by themselves. */
export const readResultTtls = statement(
  'read_result_ttls',
  'SELECT name, result_ttl_seconds FROM ichido.queues WHERE result_ttl_seconds > 0 ORDER BY name',
)

/** Takes an age, the place to go on after (dead_at, job) and a maximum. */
export const pageOfLetters = statement(
  'page_of_letters',
  `SELECT job_id AS id, dead_at FROM ichido.dead_letters
    WHERE dead_at <= (SELECT now_ms()) - CAST($1 AS bigint) AND (dead_at, job_id) > ($2, $3)
    ORDER BY dead_at, job_id LIMIT $4`,
)

const eventsDue = (age: string) =>
  `(${ENDED} AND ${NO_LETTER} AND coalesce(r.finished_at <= now_ms() - CAST(${age} AS bigint), false))`

/**
 * Takes as `pageOfJobs`, and an age. It goes from job to job among those that have events at all: jobs may be kept for ever
 * after theirs have gone.
 */
export const pageOfEvents = statement(
  'page_of_events',
  `WITH RECURSIVE e(id) AS (
      SELECT * FROM (SELECT job_id FROM ichido.events WHERE job_id > $1 AND job_id < $2 ORDER BY job_id LIMIT 1) f
      UNION ALL
      SELECT (SELECT n.job_id FROM ichido.events n WHERE n.job_id > e.id AND n.job_id < $2 ORDER BY n.job_id LIMIT 1)
      FROM e WHERE e.id IS NOT NULL)
    SELECT e.id, coalesce((SELECT ${eventsDue('$4')} FROM ichido.jobs j CROSS JOIN ichido.runs r
      WHERE j.id = e.id AND ${LATEST}), false) AS due
    FROM e WHERE e.id IS NOT NULL LIMIT $3`,
)

/**
 * Takes epoch, holder and a JSON array of jobs. Locks those that have ended, with the run that a retry or a replacement would
 * lock; what somebody has a hand on is left for the next time. Nothing here waits, so that nothing can deadlock.
 */
export const lockEndedJobs = statement('lock_ended_jobs', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT j.id FROM l CROSS JOIN json_array_elements_text($3::json) AS t(id)
      JOIN ichido.jobs j ON j.id = t.id::uuid JOIN ichido.runs r ON r.job_id = j.id AND r.latest
      WHERE r.finished_at IS NOT NULL FOR UPDATE OF j, r SKIP LOCKED)
    SELECT id FROM c`,
  sqlite: `SELECT j.id FROM json_each($3) t JOIN ichido.jobs j ON j.id = t.value
    JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE r.finished_at IS NOT NULL AND ${LED_SQLITE}`,
})

/**
 * Takes a job. Locks it with its latest run, if that has ended. It waits for a retry that is under way: whether the job has
 * still ended then is looked at anew.
 */
export const lockEndedJob = statement('lock_ended_job', {
  postgres: `SELECT j.id, r.state FROM ichido.runs r JOIN ichido.jobs j ON j.id = r.job_id
    WHERE r.job_id = $1 AND r.latest AND r.finished_at IS NOT NULL FOR UPDATE OF r, j`,
  sqlite: 'SELECT job_id AS id, state FROM ichido.runs WHERE job_id = $1 AND latest AND finished_at IS NOT NULL',
})

const IDS = {
  postgres: '(SELECT t.id::uuid FROM json_array_elements_text($1::json) AS t(id))',
  sqlite: '(SELECT t.value FROM json_each($1) t)',
}
const both = (text: (ids: string) => string) => ({ postgres: text(IDS.postgres), sqlite: text(IDS.sqlite) })

/** Takes a JSON array of jobs. */
function lockOf(table: string) {
  const text = `SELECT job_id FROM ichido.${table} WHERE job_id IN `
  return statement(`lock_${table}`, {
    postgres: `${text}${IDS.postgres} FOR UPDATE SKIP LOCKED`,
    sqlite: `${text}${IDS.sqlite}`,
  })
}
export const lockLetters = lockOf('dead_letters')
export const lockExpiredKeys = lockOf('expired_keys')

/** The parts of a job that a redrive or a retry may have locked by themselves. */
const HELD_ELSEWHERE = `(SELECT count(*) FROM ichido.dead_letters d WHERE d.job_id = j.id) AS letters,
  (SELECT count(*) FROM ichido.expired_keys e WHERE e.job_id = j.id) AS expired_keys`

/**
 * Takes a JSON array of jobs that are locked, and both ages. In a statement of its own, for the one that locks has not seen
 * what others had just written. Answers with those that go, and whether they have what must be locked besides.
 */
export const examineJobs = statement(
  'examine_jobs',
  both(
    (ids) => `SELECT j.id, ${HELD_ELSEWHERE} FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id IN ${ids} AND ${due('$2', '$3')}`,
  ),
)

/**
 * Takes a JSON array of jobs that are locked. Answers like `examineJobs`, for jobs that a person deletes: at any age, and also
 * while a key names them. The key stays, and still names the job.
 */
export const examineDeleted = statement(
  'examine_deleted',
  both(
    (ids) => `SELECT j.id, ${HELD_ELSEWHERE} FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id IN ${ids} AND ${ENDED} AND ${NO_PREDECESSOR} AND ${NOT_IN_REDRIVE}`,
  ),
)

/** Takes a job: what keeps it from being deleted. */
export const readWhyKept = statement(
  'read_why_kept',
  `SELECT r.state, ${ENDED} AS ended, (SELECT p.id FROM ichido.jobs p WHERE p.id = j.replaces_job_id) AS predecessor
    FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest WHERE j.id = $1`,
)

/** Takes a JSON array of jobs that are locked, and an age. */
export const examineEvents = statement(
  'examine_events',
  both(
    (ids) => `SELECT j.id FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id IN ${ids} AND ${eventsDue('$2')}`,
  ),
)

const DELETE_EVENTS = both(
  (ids) => `DELETE FROM ichido.events WHERE (job_id, n) IN (
      SELECT e.job_id, e.n FROM ichido.events e WHERE e.job_id IN ${ids} LIMIT $2) RETURNING n`,
)
const NO_JOB = "'00000000-0000-0000-0000-000000000000'"
const LAST_ROW = '(SELECT max(rowid) FROM ichido.events)'

/**
 * Takes a JSON array of jobs, and a maximum of events: one job may have very many. SQLite gives the highest rowid out again
 * when its row has gone, and whoever reads the events of all jobs would miss the next: a row of nobody's takes its place.
 */
export const deleteEvents = statement('delete_events', {
  postgres: DELETE_EVENTS.postgres,
  sqlite: [
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT ${NO_JOB}, rowid, 'run', 0, '', 'null', 0 FROM ichido.events
      WHERE rowid = ${LAST_ROW} AND job_id IN ${IDS.sqlite}`,
    `DELETE FROM ichido.events WHERE job_id = ${NO_JOB} AND rowid < ${LAST_ROW}`,
    DELETE_EVENTS.sqlite,
  ],
})

/** Takes a JSON array of jobs. */
export const readRunsOfJobs = statement(
  'read_runs_of_jobs',
  both((ids) => `SELECT id FROM ichido.runs WHERE job_id IN ${ids}`),
)

/** All else that belongs to a job, in the order in which others lock it. */
export const PARTS = [
  'held_runs',
  'artifacts',
  'results',
  'job_labels',
  'dead_letters',
  'expired_keys',
  'once_counters',
  'runs',
] as const

/** Take a JSON array of jobs. */
export const deleteParts = PARTS.map((table) => ({
  table,
  statement: statement(
    `remove_${table}`,
    both(
      (ids) =>
        `DELETE FROM ichido.${table} WHERE ${table === 'results' ? ofRuns(ids) : `job_id IN ${ids}`}
          RETURNING ${table === 'artifacts' ? ARTIFACT_FREED : 'job_id'}`,
    ),
  ),
}))

/** Results are found by their run alone. */
function ofRuns(ids: string): string {
  return `run_id IN (SELECT r.id FROM ichido.runs r WHERE r.job_id IN ${ids})`
}

export const deleteJobs = statement(
  'remove_jobs',
  both((ids) => `DELETE FROM ichido.jobs WHERE id IN ${ids} RETURNING user_id, octet_length(payload) AS bytes`),
)

/** Takes epoch, holder, a maximum and an age. */
export const removeAudit = statement('remove_audit', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT a.id FROM l CROSS JOIN ichido.audit a WHERE a.created_at <= (SELECT now_ms()) - CAST($4 AS bigint)
      ORDER BY a.created_at, a.id LIMIT $3 FOR UPDATE OF a SKIP LOCKED)
    DELETE FROM ichido.audit WHERE id IN (SELECT id FROM c) RETURNING id`,
  sqlite: `DELETE FROM ichido.audit WHERE ${LED_SQLITE} AND id IN (
      SELECT id FROM ichido.audit WHERE created_at <= now_ms() - $4 ORDER BY created_at, id LIMIT $3) RETURNING id`,
})

const OVER = 'coalesce(v.consumed_at, v.released_at, v.expires_at) <= now_ms() - CAST($4 AS bigint)'

/** Takes epoch, holder, a maximum, an age, and the reservation to stop before: their ids are in the order of their making. */
export const removeReservations = statement('remove_reservations', {
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT v.reservation_id FROM l CROSS JOIN ichido.job_reservations v WHERE v.reservation_id < $5 AND ${OVER}
      ORDER BY v.reservation_id LIMIT $3 FOR UPDATE OF v SKIP LOCKED)
    DELETE FROM ichido.job_reservations WHERE reservation_id IN (SELECT reservation_id FROM c) RETURNING reservation_id`,
  sqlite: `DELETE FROM ichido.job_reservations WHERE ${LED_SQLITE} AND reservation_id IN (
      SELECT v.reservation_id FROM ichido.job_reservations v WHERE v.reservation_id < $5 AND ${OVER}
      ORDER BY v.reservation_id LIMIT $3) RETURNING reservation_id`,
})
