import { FINAL_STATES } from '../../core/run/run-state.ts'
import { LOG_BYTES } from '../limits/bytes.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE } from '../system/leadership.sql.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/**
 * The log of a run is the rows of its chunks, or once it is archived one row that names its file. Whoever changes it holds
 * the row of the run.
 */

const HOLDER = "id = $1 AND assigned_worker_id = $2 AND lease_id = $3 AND state = 'RUNNING'"

/** Takes run, worker, lease. Guards the holder and RUNNING; the row lock it takes orders the log of a run. */
export const lockLogger = statement('lock_logger', {
  postgres: `SELECT id, job_id FROM ichido.runs WHERE ${HOLDER} FOR NO KEY UPDATE`,
  sqlite: `SELECT id, job_id FROM ichido.runs WHERE ${HOLDER}`,
})

export const readLogOwner = statement('read_log_owner', {
  params: { run_id: 'text' },
  row: { user_id: 'text' },
  sql: 'SELECT user_id FROM ichido.runs WHERE id = $run_id',
})

/** Takes a run: where its log has got to. */
export const readLogEnd = statement(
  'read_log_end',
  'SELECT n, end_bytes, log_ref FROM ichido.run_logs WHERE run_id = $1 ORDER BY n DESC LIMIT 1',
)

/** Takes run, n, stream, text, where the log then ends, and whether it begins with it. */
export const insertLogs = statement('insert_logs', {
  postgres: `INSERT INTO ichido.run_logs (run_id, n, stream, chunk, end_bytes, head, created_at)
    SELECT t.run_id, t.n, t.stream, t.chunk, t.end_bytes, t.head, now_ms()
    FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::bigint[], $6::boolean[])
      AS t(run_id, n, stream, chunk, end_bytes, head)`,
  sqlite: `INSERT INTO ichido.run_logs (run_id, n, stream, chunk, end_bytes, head, created_at)
    VALUES ($1, $2, $3, $4, $5, $6, now_ms())`,
})

/** Takes a job: whose it is, and how far. One whose result has outlived its queue's time is gone. */
export const readLogJob = statement(
  'read_log_job',
  `SELECT j.user_id, r.state FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $1 AND NOT ${EXPIRED}`,
)

/**
 * Chunks may be large: those before which so many bytes come stay where they are. Their places are looked through first, and
 * only the chunks that fit are read.
 */
function within(places: string, order: string, bytesMax: string): string {
  return `SELECT p.run_no, p.run_id, p.n, p.bytes, c.stream, c.chunk, c.created_at, c.log_ref
    FROM (SELECT s.*, sum(bytes) OVER (ORDER BY ${order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM (${places} ORDER BY ${order} LIMIT $4) s) p
    JOIN ichido.run_logs c ON c.run_id = p.run_id AND c.n = p.n
    WHERE p.bytes_before IS NULL OR p.bytes_before < ${bytesMax} ORDER BY ${order.replaceAll(/run_no|\bn\b/g, 'p.$&')}`
}

const PLACES = `SELECT r.run_no, l.run_id, l.n, coalesce(octet_length(l.chunk), 0) AS bytes
  FROM ichido.runs r JOIN ichido.run_logs l ON l.run_id = r.id`

/** Takes a job, the place after which to go on (number of the run, n), a maximum of chunks and one of bytes. */
export const readLogs = statement(
  'read_logs',
  within(`${PLACES} WHERE r.job_id = $1 AND (r.run_no > $2 OR (r.run_no = $2 AND l.n > $3))`, 'run_no, n', '$5'),
)

/**
 * The same backwards: what comes before a place, the last of it first. A run that was archived since its last chunks were
 * read has one row, wherever in it the place is; before its beginning, at -1, there is nothing of it.
 */
export const readLogsBack = statement(
  'read_logs_back',
  within(
    `${PLACES} WHERE r.job_id = $1
      AND (r.run_no < $2 OR (r.run_no = $2 AND (l.n < $3 OR (l.log_ref IS NOT NULL AND $3 >= 0))))`,
    'run_no DESC, n DESC',
    '$5',
  ),
)

const ENDED = `state || '' IN (${FINAL_STATES.map((state) => `'${state}'`).join(', ')})`

/**
 * Takes an age in ms and a maximum. Runs that ended at least so long ago and whose logs are still here, oldest first. Each run
 * is looked up by itself: for a join PostgreSQL would read all of them.
 */
export const readOldLogs = statement(
  'read_old_logs',
  `SELECT DISTINCT l.created_at, l.run_id FROM ichido.run_logs l
    WHERE l.head AND l.created_at <= (SELECT now_ms()) - $1
      AND (SELECT r.finished_at <= now_ms() - $1 AND r.${ENDED} FROM ichido.runs r WHERE r.id = l.run_id)
    ORDER BY l.created_at, l.run_id LIMIT $2`,
)

/** Takes a run, the n after which to go on, a maximum of bytes and one of chunks. */
export const readRunLog = statement('read_run_log', within(`${PLACES} WHERE r.id = $1 AND l.n > $2`, 'n', '$3'))

/** Takes term and run. Guards the leader's term, and that the run has ended: nothing is added to its log any more. */
export const lockEnded = statement('lock_ended', {
  postgres: `${LED} SELECT r.id FROM l CROSS JOIN ichido.runs r WHERE r.id = $3 AND r.${ENDED} FOR NO KEY UPDATE OF r`,
  sqlite: `SELECT id FROM ichido.runs WHERE ${LED_SQLITE} AND id = $3 AND ${ENDED}`,
})

/** Takes a run and the n of its last chunk. */
export const deleteChunks = statement('delete_chunks', 'DELETE FROM ichido.run_logs WHERE run_id = $1 AND n < $2')

/** Takes a run, the n of its last chunk and the name of the file, while all chunks are there: the row says how long they are. */
export const setLogRef = statement(
  'set_log_ref',
  `UPDATE ichido.run_logs SET chunk = NULL, log_ref = $3, head = false,
      end_bytes = (SELECT CAST(sum(octet_length(c.chunk)) AS bigint) FROM ichido.run_logs c WHERE c.run_id = $1)
    WHERE run_id = $1 AND n = $2 RETURNING n`,
)

/** Takes runs: which of them have a log, and the files that are named. */
export const readLogRefs = statement('read_log_refs', {
  postgres: `SELECT l.run_id, l.log_ref FROM unnest($1::uuid[]) AS t(run_id)
    CROSS JOIN LATERAL (SELECT run_id, log_ref FROM ichido.run_logs WHERE run_id = t.run_id ORDER BY n DESC LIMIT 1) l`,
  sqlite: 'SELECT run_id, log_ref FROM ichido.run_logs WHERE run_id = $1 ORDER BY n DESC LIMIT 1',
})

const removed = (row: string) => `(SELECT r.user_id FROM ichido.runs r WHERE r.id = ${row}.run_id) AS user_id,
      ${LOG_BYTES.replaceAll('l.', `${row}.`)} AS bytes`

/** Takes runs. */
export const lockLogged = statement('lock_logged', {
  postgres: `SELECT id FROM ichido.runs WHERE id = ANY($1::uuid[]) ORDER BY id FOR NO KEY UPDATE`,
  sqlite: 'SELECT id FROM ichido.runs WHERE id = $1',
})

/** Takes a JSON array of runs and a maximum of chunks; answers with whose each was, and its bytes. */
export const deleteLogs = statement('delete_logs', {
  postgres: `DELETE FROM ichido.run_logs d USING (
      SELECT l.run_id, l.n FROM json_array_elements_text($1::json) AS t(id)
      JOIN ichido.run_logs l ON l.run_id = t.id::uuid LIMIT $2) c
    WHERE d.run_id = c.run_id AND d.n = c.n RETURNING ${removed('d')}`,
  sqlite: `DELETE FROM ichido.run_logs WHERE (run_id, n) IN (
      SELECT l.run_id, l.n FROM json_each($1) t JOIN ichido.run_logs l ON l.run_id = t.value LIMIT $2)
    RETURNING ${removed('run_logs')}`,
})

/** Is any log in a file? Looks at all of them, for a start that misses the files' folder. */
export const readAnyLogRef = statement(
  'read_any_log_ref',
  'SELECT 1 AS found FROM ichido.run_logs WHERE log_ref IS NOT NULL LIMIT 1',
)
