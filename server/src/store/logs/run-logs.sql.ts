import { LOG_STREAMS } from '../../core/run/run-log.ts'
import { FINAL_STATES, RUN_STATES } from '../../core/run/run-state.ts'
import { LOG_BYTES } from '../limits/bytes.sql.ts'
import { statement } from '../statement.ts'
import { LED, LED_SQLITE, TERM } from '../system/leadership.sql.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/**
 * The log of a run is the rows of its chunks, or once it is archived one row that names its file. Whoever changes it holds
 * the row of the run.
 */

const stream = { oneOf: LOG_STREAMS } as const

const HOLDER = "id = $run_id AND assigned_worker_id = $worker_id AND lease_id = $lease_id AND state = 'RUNNING'"

/** Guards the holder and RUNNING. The row lock orders the log of a run. */
export const lockLogger = statement('lock_logger', {
  params: { run_id: 'text', worker_id: 'text', lease_id: 'text' },
  row: { job_id: 'text' },
  postgres: `SELECT id, job_id FROM ichido.runs WHERE ${HOLDER} FOR NO KEY UPDATE`,
  sqlite: `SELECT id, job_id FROM ichido.runs WHERE ${HOLDER}`,
})

export const readLogOwner = statement('read_log_owner', {
  params: { run_id: 'text' },
  row: { user_id: 'text' },
  sql: 'SELECT user_id FROM ichido.runs WHERE id = $run_id',
})

/** Finds the last chunk of the run's log. */
export const readLogEnd = statement('read_log_end', {
  params: { run_id: 'text' },
  row: { n: 'integer', end_bytes: 'integer?', log_ref: 'text?' },
  sql: 'SELECT n, end_bytes, log_ref FROM ichido.run_logs WHERE run_id = $run_id ORDER BY n DESC LIMIT 1',
})

/** `end_bytes` is the length of the log with this chunk. `head` marks the chunk that the log begins with. */
export const insertLogs = statement('insert_logs', {
  params: { run_id: 'text', n: 'integer', stream, chunk: 'text', end_bytes: 'integer', head: 'flag' },
  row: {},
  postgres: `INSERT INTO ichido.run_logs (run_id, n, stream, chunk, end_bytes, head, created_at)
    SELECT t.run_id, t.n, t.stream, t.chunk, t.end_bytes, t.head, now_ms()
    FROM unnest($run_id::uuid[], $n::integer[], $stream::text[], $chunk::text[], $end_bytes::bigint[],
        $head::boolean[])
      AS t(run_id, n, stream, chunk, end_bytes, head)`,
  sqlite: `INSERT INTO ichido.run_logs (run_id, n, stream, chunk, end_bytes, head, created_at)
    VALUES ($run_id, $n, $stream, $chunk, $end_bytes, $head, now_ms())`,
})

/** Does not find a job whose result has outlived its queue's time. */
export const readLogJob = statement('read_log_job', {
  params: { job_id: 'text' },
  row: { user_id: 'text', state: { oneOf: RUN_STATES } },
  sql: `SELECT j.user_id, r.state FROM ichido.jobs j JOIN ichido.runs r ON r.job_id = j.id AND r.latest
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

const PLACED_ROW = {
  run_no: 'integer',
  run_id: 'text',
  n: 'integer',
  bytes: 'integer',
  stream,
  chunk: 'text?',
  created_at: 'integer',
  log_ref: 'text?',
} as const

/**
 * Chunks may be large. Their places are read first, up to `$chunks_max`. Then only those chunks are read that begin within the
 * first `$bytes_max` bytes.
 */
function within(places: string, order: string): string {
  return `SELECT p.run_no, p.run_id, p.n, p.bytes, c.stream, c.chunk, c.created_at, c.log_ref
    FROM (SELECT s.*, sum(bytes) OVER (ORDER BY ${order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM (${places} ORDER BY ${order} LIMIT $chunks_max) s) p
    JOIN ichido.run_logs c ON c.run_id = p.run_id AND c.n = p.n
    WHERE p.bytes_before IS NULL OR p.bytes_before < $bytes_max ORDER BY ${order.replaceAll(/run_no|\bn\b/g, 'p.$&')}`
}

const PLACES = `SELECT r.run_no, l.run_id, l.n, coalesce(octet_length(l.chunk), 0) AS bytes
  FROM ichido.runs r JOIN ichido.run_logs l ON l.run_id = r.id`

/** Reads on after a place in the log of a job. */
export const readLogs = statement('read_logs', {
  params: { job_id: 'text', run_no: 'integer', n: 'integer', chunks_max: 'integer', bytes_max: 'integer' },
  row: PLACED_ROW,
  sql: within(
    `${PLACES} WHERE r.job_id = $job_id AND (r.run_no > $run_no OR (r.run_no = $run_no AND l.n > $n))`,
    'run_no, n',
  ),
})

/**
 * Reads backwards from a place, the last chunk first. A run that was archived since its last chunks were read has one row,
 * wherever in the run the place is. The place -1 is before the beginning of a run, and finds nothing of it.
 */
export const readLogsBack = statement('read_logs_back', {
  params: { job_id: 'text', run_no: 'integer', n: 'integer', chunks_max: 'integer', bytes_max: 'integer' },
  row: PLACED_ROW,
  sql: within(
    `${PLACES} WHERE r.job_id = $job_id
      AND (r.run_no < $run_no OR (r.run_no = $run_no AND (l.n < $n OR (l.log_ref IS NOT NULL AND $n >= 0))))`,
    'run_no DESC, n DESC',
  ),
})

const ENDED = `state || '' IN (${FINAL_STATES.map((state) => `'${state}'`).join(', ')})`

/**
 * Finds runs that ended at least `age_ms` ago and whose logs are still in the store, oldest first. A subquery looks up each
 * run: for a join PostgreSQL would read all runs.
 */
export const readOldLogs = statement('read_old_logs', {
  params: { age_ms: 'integer', max: 'integer' },
  row: { run_id: 'text' },
  sql: `SELECT DISTINCT l.created_at, l.run_id FROM ichido.run_logs l
    WHERE l.head AND l.created_at <= (SELECT now_ms()) - $age_ms
      AND (SELECT r.finished_at <= now_ms() - $age_ms AND r.${ENDED} FROM ichido.runs r WHERE r.id = l.run_id)
    ORDER BY l.created_at, l.run_id LIMIT $max`,
})

export const readRunLog = statement('read_run_log', {
  params: { run_id: 'text', n: 'integer', bytes_max: 'integer', chunks_max: 'integer' },
  row: PLACED_ROW,
  sql: within(`${PLACES} WHERE r.id = $run_id AND l.n > $n`, 'n'),
})

/** Guards the leader's term, and that the run has ended: its log no longer grows. */
export const lockEnded = statement('lock_ended', {
  params: { ...TERM, run_id: 'text' },
  row: { id: 'text' },
  postgres: `${LED} SELECT r.id FROM l CROSS JOIN ichido.runs r WHERE r.id = $run_id AND r.${ENDED} FOR NO KEY UPDATE OF r`,
  sqlite: `SELECT id FROM ichido.runs WHERE ${LED_SQLITE} AND id = $run_id AND ${ENDED}`,
})

/** Deletes all chunks but the last. */
export const deleteChunks = statement('delete_chunks', {
  params: { run_id: 'text', last_n: 'integer' },
  row: {},
  sql: 'DELETE FROM ichido.run_logs WHERE run_id = $run_id AND n < $last_n',
})

/** Sets the length of the log too, so all chunks must still be there. */
export const setLogRef = statement('set_log_ref', {
  params: { run_id: 'text', last_n: 'integer', log_ref: 'text' },
  row: { n: 'integer' },
  sql: `UPDATE ichido.run_logs SET chunk = NULL, log_ref = $log_ref, head = false,
      end_bytes = (SELECT CAST(sum(octet_length(c.chunk)) AS bigint) FROM ichido.run_logs c WHERE c.run_id = $run_id)
    WHERE run_id = $run_id AND n = $last_n RETURNING n`,
})

/** Finds the runs that have a log, and the files of those logs. */
export const readLogRefs = statement('read_log_refs', {
  params: { run_id: 'text' },
  row: { run_id: 'text', log_ref: 'text?' },
  postgres: `SELECT l.run_id, l.log_ref FROM unnest($run_id::uuid[]) AS t(run_id)
    CROSS JOIN LATERAL (SELECT run_id, log_ref FROM ichido.run_logs WHERE run_id = t.run_id ORDER BY n DESC LIMIT 1) l`,
  sqlite: 'SELECT run_id, log_ref FROM ichido.run_logs WHERE run_id = $run_id ORDER BY n DESC LIMIT 1',
})

const removed = (row: string) => `(SELECT r.user_id FROM ichido.runs r WHERE r.id = ${row}.run_id) AS user_id,
      ${LOG_BYTES.replaceAll('l.', `${row}.`)} AS bytes`

export const lockLogged = statement('lock_logged', {
  params: { run_id: 'text' },
  row: { id: 'text' },
  postgres: `SELECT id FROM ichido.runs WHERE id = ANY($run_id::uuid[]) ORDER BY id FOR NO KEY UPDATE`,
  sqlite: 'SELECT id FROM ichido.runs WHERE id = $run_id',
})

/** `run_ids` is a JSON array. Answers with the owner and the bytes of each chunk. */
export const deleteLogs = statement('delete_logs', {
  params: { run_ids: 'text', chunks_max: 'integer' },
  row: { user_id: 'text', bytes: 'integer?' },
  postgres: `DELETE FROM ichido.run_logs d USING (
      SELECT l.run_id, l.n FROM json_array_elements_text($run_ids::json) AS t(id)
      JOIN ichido.run_logs l ON l.run_id = t.id::uuid LIMIT $chunks_max) c
    WHERE d.run_id = c.run_id AND d.n = c.n RETURNING ${removed('d')}`,
  sqlite: `DELETE FROM ichido.run_logs WHERE (run_id, n) IN (
      SELECT l.run_id, l.n FROM json_each($run_ids) t JOIN ichido.run_logs l ON l.run_id = t.value LIMIT $chunks_max)
    RETURNING ${removed('run_logs')}`,
})

/** Is any log in a file? Reads all rows, for a start that misses the folder of the files. */
export const readAnyLogRef = statement('read_any_log_ref', {
  params: {},
  row: { found: 'integer' },
  sql: 'SELECT 1 AS found FROM ichido.run_logs WHERE log_ref IS NOT NULL LIMIT 1',
})
