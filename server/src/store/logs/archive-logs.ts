import { freeBytes, LOG_BYTES } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { each, one, query, statement, type Work } from '../statement.ts'
import { LED, LED_SQLITE, TERM, type Term } from '../system/term.ts'
import { type LogAmount, type LogRow, PLACED_ROW, PLACES, readLogEnd, within } from './run-logs.ts'

const OF_LOG = 'r.job_id = l.job_id AND r.run_no = l.run_no'

/**
 * Finds runs that ended at least `age_ms` ago and whose logs are still in the store, oldest first. A subquery looks up each
 * run: for a join PostgreSQL would read all runs.
 */
const readOldLogs = statement('read_old_logs', {
  params: { age_ms: 'integer', max: 'integer' },
  row: { run_id: 'text' },
  sql: `SELECT DISTINCT l.created_at, l.run_id FROM ichido.run_logs l
    WHERE l.head AND l.created_at <= (SELECT now_ms()) - $age_ms
      AND (SELECT r.finished_at <= now_ms() - $age_ms FROM ichido.ended r WHERE ${OF_LOG})
    ORDER BY l.created_at, l.run_id LIMIT $max`,
})

const readRunLog = statement('read_run_log', {
  params: { run_id: 'text', n: 'integer', bytes_max: 'integer', chunks_max: 'integer' },
  row: PLACED_ROW,
  sql: within(`${PLACES} WHERE l.run_id = $run_id AND l.n > $n`, 'n'),
})

/** Guards the leader's term, and that the run has ended: its log no longer grows. */
const lockEnded = statement('lock_ended', {
  params: { ...TERM, run_id: 'text' },
  row: { run_id: 'text' },
  postgres: `${LED.replace('WITH l AS', 'WITH term AS')} SELECT r.run_id FROM term
    CROSS JOIN (SELECT job_id, run_no FROM ichido.run_logs WHERE run_id = $run_id LIMIT 1) l
    JOIN ichido.ended r ON ${OF_LOG} FOR NO KEY UPDATE OF r`,
  sqlite: `SELECT r.run_id FROM (SELECT job_id, run_no FROM ichido.run_logs WHERE run_id = $run_id LIMIT 1) l
    JOIN ichido.ended r ON ${OF_LOG} WHERE ${LED_SQLITE}`,
})

/** Deletes all chunks but the last. */
const deleteChunks = statement('delete_chunks', {
  params: { run_id: 'text', last_n: 'integer' },
  row: {},
  sql: 'DELETE FROM ichido.run_logs WHERE run_id = $run_id AND n < $last_n',
})

/** Also sets the length of the log, so all chunks must still exist. */
const setLogRef = statement('set_log_ref', {
  params: { run_id: 'text', last_n: 'integer', log_ref: 'text' },
  row: { n: 'integer' },
  sql: `UPDATE ichido.run_logs SET chunk = NULL, log_ref = $log_ref, head = false,
      end_bytes = (SELECT CAST(sum(octet_length(c.chunk)) AS bigint) FROM ichido.run_logs c WHERE c.run_id = $run_id)
    WHERE run_id = $run_id AND n = $last_n RETURNING n`,
})

/** Finds the runs that have a log, and the files of those logs. */
const readLogRefs = statement('read_log_refs', {
  params: { run_id: 'text' },
  row: { run_id: 'text', log_ref: 'text?' },
  postgres: `SELECT l.run_id, l.log_ref FROM unnest($run_id::uuid[]) AS t(run_id)
    CROSS JOIN LATERAL (SELECT run_id, log_ref FROM ichido.run_logs WHERE run_id = t.run_id ORDER BY n DESC LIMIT 1) l`,
  sqlite: 'SELECT run_id, log_ref FROM ichido.run_logs WHERE run_id = $run_id ORDER BY n DESC LIMIT 1',
})

const removed = (row: string) => `(SELECT j.user_id FROM ichido.jobs j WHERE j.id = ${row}.job_id) AS user_id,
      ${LOG_BYTES.replaceAll('l.', `${row}.`)} AS bytes`

/** `job_ids` is a JSON array of ended jobs. Waits while one of their logs is archived. */
const lockLogged = statement('lock_logged', {
  params: { job_ids: 'text' },
  row: { run_id: 'text' },
  postgres: `SELECT r.run_id FROM ichido.ended r WHERE r.job_id IN (SELECT t.id::uuid FROM json_array_elements_text($job_ids::json) AS t(id))
    ORDER BY r.job_id, r.run_no FOR NO KEY UPDATE`,
  sqlite: 'SELECT r.run_id FROM ichido.ended r WHERE r.job_id IN (SELECT t.value FROM json_each($job_ids) t)',
})

/** `job_ids` is a JSON array. Returns the owner and the bytes of each chunk. */
const deleteLogs = statement('delete_logs', {
  params: { job_ids: 'text', chunks_max: 'integer' },
  row: { user_id: 'text', bytes: 'integer?' },
  postgres: `DELETE FROM ichido.run_logs d USING (
      SELECT l.run_id, l.n FROM json_array_elements_text($job_ids::json) AS t(id)
      JOIN ichido.run_logs l ON l.job_id = t.id::uuid LIMIT $chunks_max) c
    WHERE d.run_id = c.run_id AND d.n = c.n RETURNING ${removed('d')}`,
  sqlite: `DELETE FROM ichido.run_logs WHERE (run_id, n) IN (
      SELECT l.run_id, l.n FROM json_each($job_ids) t JOIN ichido.run_logs l ON l.job_id = t.value LIMIT $chunks_max)
    RETURNING ${removed('run_logs')}`,
})

/** Finds any archived log. It reads all rows, and runs only if a node starts without the folder of the files. */
const readAnyLogRef = statement('read_any_log_ref', {
  params: {},
  row: { found: 'integer' },
  sql: 'SELECT 1 AS found FROM ichido.run_logs WHERE log_ref IS NOT NULL LIMIT 1',
})

/** Finds runs that ended at least `ageMs` ago and whose logs are still in the store, oldest first. */
export function findOldLogs(ageMs: number, max: number): Command<string[]> {
  return command('find_old_logs', function* work(): Work<string[]> {
    const rows = yield* query(readOldLogs, { age_ms: Math.floor(ageMs), max })
    return [...new Set(rows.map((row) => row.run_id))]
  })
}

/** Reads the chunks of a run after `afterN`. */
export function findRunLog(runId: string, afterN: number, { chunksMax, bytesMax }: LogAmount): Command<LogRow[]> {
  const params = { run_id: runId, n: afterN, bytes_max: bytesMax, chunks_max: chunksMax }
  return command('find_run_log', () => query(readRunLog, params))
}

/**
 * Replaces the chunks of a run, up to the last, by their file. Returns false if the term is over, or another node has
 * archived or removed the log.
 */
export function archiveLog({ epoch, holder }: Term, { runId, lastN, logRef }: ArchivedLog): Command<boolean> {
  const run_id = runId
  return command('archive_log', function* work(): Work<boolean> {
    if ((yield* one(lockEnded, { epoch, holder, run_id })) === undefined) return false
    const end = yield* one(readLogEnd, { run_id })
    if (end === undefined) return false
    // The reference is ours if an earlier try was committed but not acknowledged.
    if (end.log_ref !== null) return end.log_ref === logRef
    if (end.n !== lastN) return false
    const named = yield* query(setLogRef, { run_id, last_n: lastN, log_ref: logRef })
    yield* query(deleteChunks, { run_id, last_n: lastN })
    return named.length > 0
  })
}

interface ArchivedLog {
  runId: string
  /** The number of the last chunk. */
  lastN: number
  logRef: string
}

/** Returns an entry for each run with a log: its file, or null. */
export function findLogRefs(runIds: readonly string[]): Command<Map<string, string | null>> {
  return command('find_log_refs', function* work(): Work<Map<string, string | null>> {
    const rows = yield* each(
      readLogRefs,
      runIds.map((run_id) => ({ run_id })),
    )
    return new Map(rows.map((row) => [row.run_id, row.log_ref]))
  })
}

/**
 * Removes the logs of jobs, in the transaction that then removes the jobs and has locked their users. Returns false if
 * there may be more chunks than `chunksMax`: call it again. The leader removes the files later
 * (leader/duties/archive.ts).
 */
export function* forgetLogs(jobIds: string, chunksMax: number): Work<boolean> {
  yield* query(lockLogged, { job_ids: jobIds })
  const removed = yield* query(deleteLogs, { job_ids: jobIds, chunks_max: chunksMax })
  yield* freeBytes(removed)
  return removed.length < chunksMax
}

export function hasArchivedLogs(): Command<boolean> {
  return command('has_archived_logs', function* work(): Work<boolean> {
    return (yield* one(readAnyLogRef, {})) !== undefined
  })
}
