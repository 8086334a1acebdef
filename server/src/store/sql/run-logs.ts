import { statement } from '../statement.ts'

const HOLDER = "id = $1 AND assigned_worker_id = $2 AND lease_id = $3 AND state = 'RUNNING'"

/** Takes run, worker, lease. Guards the holder and RUNNING; the row lock it takes orders the log of a run. */
export const lockLogger = statement('lock_logger', {
  postgres: `SELECT id FROM ichido.runs WHERE ${HOLDER} FOR NO KEY UPDATE`,
  sqlite: `SELECT id FROM ichido.runs WHERE ${HOLDER}`,
})

/** Takes a run: where its log has got to. */
export const readLogEnd = statement(
  'read_log_end',
  'SELECT n, end_bytes FROM ichido.run_logs WHERE run_id = $1 ORDER BY n DESC LIMIT 1',
)

/** Takes run, n, stream, text, where the log then ends. */
export const insertLogs = statement('insert_logs', {
  postgres: `INSERT INTO ichido.run_logs (run_id, n, stream, chunk, end_bytes, created_at)
    SELECT t.run_id, t.n, t.stream, t.chunk, t.end_bytes, now_ms()
    FROM unnest($1::uuid[], $2::integer[], $3::text[], $4::text[], $5::bigint[]) AS t(run_id, n, stream, chunk, end_bytes)`,
  sqlite: `INSERT INTO ichido.run_logs (run_id, n, stream, chunk, end_bytes, created_at) VALUES ($1, $2, $3, $4, $5, now_ms())`,
})

/** Takes a job, the place after which to go on (number of the run, n) and a maximum. */
export const readLogs = statement(
  'read_logs',
  `SELECT r.run_no, r.id AS run_id, r.attempt, l.n, l.stream, l.chunk, l.created_at
    FROM ichido.runs r JOIN ichido.run_logs l ON l.run_id = r.id
    WHERE r.job_id = $1 AND (r.run_no > $2 OR (r.run_no = $2 AND l.n > $3))
    ORDER BY r.run_no, l.n LIMIT $4`,
)
