import { FIRST_ID } from '../../core/run/job.ts'
import { RUN_STATES } from '../../core/run/run-state.ts'
import { FREE } from '../dead-letters/free.sql.ts'
import { ARTIFACT_FREED } from '../limits/bytes.ts'
import { JOB_AND_END, JOB_IN_ROOMS, STATE } from '../runs/rooms.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from './term.ts'

/**
 * Rows whose retention has ended. Conditions are scalar subqueries, not EXISTS or joins: for those PostgreSQL would
 * read whole tables for a page of jobs.
 */

const state = { oneOf: RUN_STATES } as const

const NO_LETTER = '(SELECT d.job_id FROM ichido.dead_letters d WHERE d.job_id = j.id) IS NULL'

/** For a job `j` whose latest run, if it has ended, is `e`: the result's time in its queue is over. */
const OUTLIVED = `coalesce(e.finished_at + 1000 * CAST((SELECT q.result_ttl_seconds FROM ichido.queues q
  WHERE q.name = j.queue AND q.result_ttl_seconds > 0) AS bigint) <= now_ms(), false)`

/** Readers no longer see the job, even before it is removed. A dead letter does not expire: it waits for a retry. */
export const EXPIRED = `(${OUTLIVED} AND ${NO_LETTER})`

const NO_KEY = '(SELECT k.job_id FROM ichido.idempotency_keys k WHERE k.job_id = j.id) IS NULL'
/** A job is replaced at most once. Its replacement proves that, and stays as long as the job. */
const NO_PREDECESSOR = '(SELECT p.id FROM ichido.jobs p WHERE p.id = j.replaces_job_id) IS NULL'
const NOT_IN_REDRIVE = `coalesce((SELECT ${FREE} FROM ichido.dead_letters d WHERE d.job_id = j.id), true)`
const ENDED = 'e.job_id IS NOT NULL'

/** The ages at which ended jobs and dead letters are removed; null: never. */
const AGES = { job_ms: 'integer?', letter_ms: 'integer?' } as const

/** A job stays as long as a key names it. */
const DUE = `(${ENDED} AND ${NO_PREDECESSOR}
  AND CASE (SELECT CASE WHEN d.dead_at <= now_ms() - CAST($letter_ms AS bigint) AND ${FREE} THEN 1 ELSE 0 END
      FROM ichido.dead_letters d WHERE d.job_id = j.id)
    WHEN 1 THEN ${NO_KEY}
    WHEN 0 THEN false
    ELSE ${OUTLIVED} OR coalesce(e.finished_at <= now_ms() - CAST($job_ms AS bigint), false) AND ${NO_KEY} END)`

/** Jobs between two ids, neither of them included. */
const RANGE = { after: 'text', before: 'text', max: 'integer' } as const
const PAGE = { id: 'text', due: 'flag' } as const

/**
 * Walks through jobs in the order of their ids, which is the order of their creation. An index on the end of jobs would
 * find them sooner, but every run that ends would have to write it. Most jobs past their retention have been removed
 * already, so there are few to walk through.
 */
export const pageOfJobs = statement('page_of_jobs', {
  params: { ...RANGE, ...AGES },
  row: PAGE,
  sql: `SELECT j.id, ${DUE} AS due FROM ${JOB_AND_END}
    WHERE j.id > $after AND j.id < $before ORDER BY j.id LIMIT $max`,
})

/** The same for one queue. */
export const pageOfQueue = statement('page_of_queue', {
  params: { ...RANGE, ...AGES, queue: 'text' },
  row: PAGE,
  sql: `SELECT j.id, ${DUE} AS due FROM ${JOB_AND_END}
    WHERE j.queue = $queue AND j.id > $after AND j.id < $before ORDER BY j.id LIMIT $max`,
})

/** Queues whose results expire. */
export const readResultTtls = statement('read_result_ttls', {
  params: {},
  row: { name: 'text', result_ttl_seconds: 'integer' },
  sql: 'SELECT name, result_ttl_seconds FROM ichido.queues WHERE result_ttl_seconds > 0 ORDER BY name',
})

/** The page after the letter of `dead_at` and `job_id`. */
export const pageOfLetters = statement('page_of_letters', {
  params: { age_ms: 'integer', dead_at: 'integer', job_id: 'text', max: 'integer' },
  row: { id: 'text', dead_at: 'integer' },
  sql: `SELECT job_id AS id, dead_at FROM ichido.dead_letters
    WHERE dead_at <= (SELECT now_ms()) - CAST($age_ms AS bigint) AND (dead_at, job_id) > ($dead_at, $job_id)
    ORDER BY dead_at, job_id LIMIT $max`,
})

const EVENTS_DUE = `(${ENDED} AND ${NO_LETTER}
  AND coalesce(e.finished_at <= now_ms() - CAST($age_ms AS bigint), false))`

/** Walks through the jobs that have events: a job may outlive its events. */
export const pageOfEvents = statement('page_of_events', {
  params: { ...RANGE, age_ms: 'integer' },
  row: PAGE,
  sql: `WITH RECURSIVE p(id) AS (
      SELECT * FROM (SELECT job_id FROM ichido.events WHERE job_id > $after AND job_id < $before ORDER BY job_id LIMIT 1) f
      UNION ALL
      SELECT (SELECT n.job_id FROM ichido.events n WHERE n.job_id > p.id AND n.job_id < $before ORDER BY n.job_id LIMIT 1)
      FROM p WHERE p.id IS NOT NULL)
    SELECT p.id, coalesce((SELECT ${EVENTS_DUE} FROM ${JOB_AND_END} WHERE j.id = p.id), false) AS due
    FROM p WHERE p.id IS NOT NULL LIMIT $max`,
})

/** A JSON array. */
const JOB_IDS = { job_ids: 'text' } as const

/**
 * Locks ended jobs, each with the run that a retry or a replacement would lock. A locked job is left for the next time.
 * Nothing waits here, so nothing can deadlock.
 */
export const lockEndedJobs = statement('lock_ended_jobs', {
  params: { ...TERM, ...JOB_IDS },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT j.id FROM l CROSS JOIN json_array_elements_text($job_ids::json) AS t(id)
      JOIN ichido.jobs j ON j.id = t.id::uuid JOIN ichido.ended e ON e.job_id = j.id AND e.latest
      FOR UPDATE OF j, e SKIP LOCKED)
    SELECT id FROM c`,
  sqlite: `SELECT j.id FROM json_each($job_ids) t JOIN ichido.jobs j ON j.id = t.value
    JOIN ichido.ended e ON e.job_id = j.id AND e.latest WHERE ${LED_SQLITE}`,
})

/** Locks a job with its latest run, if the run has ended. It waits for a running retry, and then checks again. */
export const lockEndedJob = statement('lock_ended_job', {
  params: { job_id: 'text' },
  row: { id: 'text', state },
  postgres: `SELECT j.id, e.state FROM ichido.ended e JOIN ichido.jobs j ON j.id = e.job_id
    WHERE e.job_id = $job_id AND e.latest FOR UPDATE OF e, j`,
  sqlite: 'SELECT job_id AS id, state FROM ichido.ended WHERE job_id = $job_id AND latest',
})

const IDS = {
  postgres: '(SELECT t.id::uuid FROM json_array_elements_text($job_ids::json) AS t(id))',
  sqlite: '(SELECT t.value FROM json_each($job_ids) t)',
}
const both = (text: (ids: string) => string) => ({ postgres: text(IDS.postgres), sqlite: text(IDS.sqlite) })

function lockOf(table: string) {
  const text = `SELECT job_id FROM ichido.${table} WHERE job_id IN `
  return statement(`lock_${table}`, {
    params: JOB_IDS,
    row: { job_id: 'text' },
    postgres: `${text}${IDS.postgres} FOR UPDATE SKIP LOCKED`,
    sqlite: `${text}${IDS.sqlite}`,
  })
}
export const lockLetters = lockOf('dead_letters')
export const lockExpiredKeys = lockOf('expired_keys')

/** The parts of a job that a redrive or a retry locks by themselves. */
const HELD_ELSEWHERE = `(SELECT count(*) FROM ichido.dead_letters d WHERE d.job_id = j.id) AS letters,
  (SELECT count(*) FROM ichido.expired_keys e WHERE e.job_id = j.id) AS expired_keys`

/** A job to remove, and how many of its parts must be locked, too. */
const EXAMINED = { id: 'text', letters: 'integer', expired_keys: 'integer' } as const

/**
 * The jobs are locked. This is a separate statement, because the locking statement does not see what other transactions
 * had just written.
 */
export const examineJobs = statement('examine_jobs', {
  params: { ...JOB_IDS, ...AGES },
  row: EXAMINED,
  ...both(
    (ids) => `SELECT j.id, ${HELD_ELSEWHERE} FROM ${JOB_AND_END}
    WHERE j.id IN ${ids} AND ${DUE}`,
  ),
})

/**
 * The same for jobs that a person deletes: at any age, and even while a key names them. The key stays, and still names
 * the job.
 */
export const examineDeleted = statement('examine_deleted', {
  params: JOB_IDS,
  row: EXAMINED,
  ...both(
    (ids) => `SELECT j.id, ${HELD_ELSEWHERE} FROM ${JOB_AND_END}
    WHERE j.id IN ${ids} AND ${ENDED} AND ${NO_PREDECESSOR} AND ${NOT_IN_REDRIVE}`,
  ),
})

/** Reads why a job cannot be deleted. */
export const readWhyKept = statement('read_why_kept', {
  params: { job_id: 'text' },
  row: { state, ended: 'flag', predecessor: 'text?' },
  sql: `SELECT ${STATE} AS state, ${ENDED} AS ended, (SELECT p.id FROM ichido.jobs p WHERE p.id = j.replaces_job_id) AS predecessor
    FROM ${JOB_IN_ROOMS} WHERE j.id = $job_id`,
})

/** The jobs are locked. */
export const examineEvents = statement('examine_events', {
  params: { ...JOB_IDS, age_ms: 'integer' },
  row: { id: 'text' },
  ...both((ids) => `SELECT j.id FROM ${JOB_AND_END} WHERE j.id IN ${ids} AND ${EVENTS_DUE}`),
})

const DELETE_EVENTS = both(
  (ids) => `DELETE FROM ichido.events WHERE (job_id, n) IN (
      SELECT e.job_id, e.n FROM ichido.events e WHERE e.job_id IN ${ids} LIMIT $max) RETURNING n`,
)
const NO_JOB = `'${FIRST_ID}'`
const LAST_ROW = '(SELECT max(rowid) FROM ichido.events)'

/**
 * SQLite reuses the highest rowid after its row is deleted, and a reader of all events would miss the next event. So a
 * row without a job takes its place.
 */
export const deleteEvents = statement('delete_events', {
  params: { ...JOB_IDS, max: 'integer' },
  row: { n: 'integer' },
  postgres: DELETE_EVENTS.postgres,
  sqlite: [
    `INSERT INTO ichido.events (job_id, n, stage, seq, domain, data, created_at)
      SELECT ${NO_JOB}, rowid, 'run', 0, '', 'null', 0 FROM ichido.events
      WHERE rowid = ${LAST_ROW} AND job_id IN ${IDS.sqlite}`,
    `DELETE FROM ichido.events WHERE job_id = ${NO_JOB} AND rowid < ${LAST_ROW}`,
    DELETE_EVENTS.sqlite,
  ],
})

/** The jobs are locked. After their last rows in `events`, the rest of their events would have gaps. */
export const forgetMoves = statement('forget_moves', {
  params: JOB_IDS,
  row: {},
  postgres: `UPDATE ichido.ended SET leased_n = NULL, leased_tx = NULL, ended_n = NULL, ended_tx = NULL
    WHERE job_id IN ${IDS.postgres} AND (leased_n IS NOT NULL OR ended_n IS NOT NULL)`,
  sqlite: [],
})

/** The other parts of a job, in the lock order of other transactions. */
const PARTS = [
  'upload_waits',
  'artifacts',
  'results',
  'job_labels',
  'callbacks',
  'dead_letters',
  'expired_keys',
  'once_counters',
  'ended',
] as const

const FREED = { user_id: 'text', bytes: 'integer?' } as const

export const deleteParts = PARTS.map((table) => {
  const text = (returned: string) =>
    both(
      (ids) =>
        `DELETE FROM ichido.${table} WHERE ${table === 'results' ? ofRuns(ids) : `job_id IN ${ids}`}
          RETURNING ${returned}`,
    )
  const name = `remove_${table}`
  return table === 'artifacts'
    ? { table, statement: statement(name, { params: JOB_IDS, row: FREED, ...text(ARTIFACT_FREED) }) }
    : { table, statement: statement(name, { params: JOB_IDS, row: { job_id: 'text' }, ...text('job_id') }) }
})

/** Results are found only by their run. */
function ofRuns(ids: string): string {
  return `run_id IN (SELECT r.run_id FROM ichido.ended r WHERE r.job_id IN ${ids})`
}

export const deleteJobs = statement('remove_jobs', {
  params: JOB_IDS,
  row: FREED,
  ...both((ids) => `DELETE FROM ichido.jobs WHERE id IN ${ids} RETURNING user_id, octet_length(payload) AS bytes`),
})

export const removeAudit = statement('remove_audit', {
  params: { ...TERM, max: 'integer', age_ms: 'integer' },
  row: { id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT a.id FROM l CROSS JOIN ichido.audit a WHERE a.created_at <= (SELECT now_ms()) - CAST($age_ms AS bigint)
      ORDER BY a.created_at, a.id LIMIT $max FOR UPDATE OF a SKIP LOCKED)
    DELETE FROM ichido.audit WHERE id IN (SELECT id FROM c) RETURNING id`,
  sqlite: `DELETE FROM ichido.audit WHERE ${LED_SQLITE} AND id IN (
      SELECT id FROM ichido.audit WHERE created_at <= now_ms() - $age_ms ORDER BY created_at, id LIMIT $max) RETURNING id`,
})

const OVER = 'coalesce(v.consumed_at, v.released_at, v.expires_at) <= now_ms() - CAST($age_ms AS bigint)'

/** Their ids are in the order of their creation. */
export const removeReservations = statement('remove_reservations', {
  params: { ...TERM, max: 'integer', age_ms: 'integer', before: 'text' },
  row: { reservation_id: 'text' },
  postgres: `${LED}, c AS MATERIALIZED (
      SELECT v.reservation_id FROM l CROSS JOIN ichido.job_reservations v WHERE v.reservation_id < $before AND ${OVER}
      ORDER BY v.reservation_id LIMIT $max FOR UPDATE OF v SKIP LOCKED)
    DELETE FROM ichido.job_reservations WHERE reservation_id IN (SELECT reservation_id FROM c) RETURNING reservation_id`,
  sqlite: `DELETE FROM ichido.job_reservations WHERE ${LED_SQLITE} AND reservation_id IN (
      SELECT v.reservation_id FROM ichido.job_reservations v WHERE v.reservation_id < $before AND ${OVER}
      ORDER BY v.reservation_id LIMIT $max) RETURNING reservation_id`,
})
