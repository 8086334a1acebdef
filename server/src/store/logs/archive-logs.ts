import { freeBytes } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { each, one, query, type Work } from '../statement.ts'
import type { Term } from '../system/leadership.ts'
import * as sql from './run-logs.sql.ts'
import type { LogAmount, LogRow } from './run-logs.ts'

/** The runs that ended so long ago and whose logs are still in the store, oldest first. */
export function findOldLogs(ageMs: number, max: number): Command<string[]> {
  return command('find_old_logs', function* work(): Work<string[]> {
    const rows = yield* query(sql.readOldLogs, { age_ms: Math.floor(ageMs), max })
    return [...new Set(rows.map((row) => row.run_id))]
  })
}

/** The chunks of a run after one of them. */
export function findRunLog(runId: string, afterN: number, { chunksMax, bytesMax }: LogAmount): Command<LogRow[]> {
  const params = { run_id: runId, n: afterN, bytes_max: bytesMax, chunks_max: chunksMax }
  return command('find_run_log', () => query(sql.readRunLog, params))
}

/**
 * The log of a run is in a file now, up to its last chunk. The file takes the place of the chunks. False: the term is over, or
 * another node has archived or removed the log.
 */
export function archiveLog({ epoch, holder }: Term, { runId, lastN, logRef }: ArchivedLog): Command<boolean> {
  const run_id = runId
  return command('archive_log', function* work(): Work<boolean> {
    if ((yield* one(sql.lockEnded, { epoch, holder, run_id })) === undefined) return false
    const end = yield* one(sql.readLogEnd, { run_id })
    if (end === undefined) return false
    // The reference is ours if an earlier try was committed but not acknowledged.
    if (end.log_ref !== null) return end.log_ref === logRef
    if (end.n !== lastN) return false
    const named = yield* query(sql.setLogRef, { run_id, last_n: lastN, log_ref: logRef })
    yield* query(sql.deleteChunks, { run_id, last_n: lastN })
    return named.length > 0
  })
}

export interface ArchivedLog {
  runId: string
  /** Of its last chunk. */
  lastN: number
  logRef: string
}

/** Has an entry for each run with a log: the file of the log, or null. */
export function findLogRefs(runIds: readonly string[]): Command<Map<string, string | null>> {
  return command('find_log_refs', function* work(): Work<Map<string, string | null>> {
    const rows = yield* each(
      sql.readLogRefs,
      runIds.map((run_id) => ({ run_id })),
    )
    return new Map(rows.map((row) => [row.run_id, row.log_ref]))
  })
}

/**
 * Removes the logs of runs, in the transaction that then removes the runs and has locked their users. False when there may be
 * more chunks than `chunksMax`: call it again. The leader removes the files later (leader/duties/archive.ts).
 */
export function* forgetLogs(runIds: readonly string[], chunksMax: number): Work<boolean> {
  yield* each(
    sql.lockLogged,
    runIds.toSorted().map((run_id) => ({ run_id })),
  )
  const removed = yield* query(sql.deleteLogs, { run_ids: JSON.stringify(runIds), chunks_max: chunksMax })
  yield* freeBytes(removed)
  return removed.length < chunksMax
}

export function hasArchivedLogs(): Command<boolean> {
  return command('has_archived_logs', function* work(): Work<boolean> {
    return (yield* one(sql.readAnyLogRef, {})) !== undefined
  })
}
