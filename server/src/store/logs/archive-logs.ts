import { freeBytes } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { each, integer, one, query, type Row, text, textOrNull, type Work } from '../statement.ts'
import { fence, type Term } from '../system/leadership.ts'
import * as sql from './run-logs.sql.ts'
import type { LogAmount } from './run-logs.ts'

/** The runs that ended so long ago and whose logs are still in the store, oldest first. */
export function findOldLogs(ageMs: number, max: number): Command<string[]> {
  return command('find_old_logs', function* work(): Work<string[]> {
    const rows = yield* query(sql.readOldLogs, Math.floor(ageMs), max)
    return [...new Set(rows.map((row) => text(row, 'run_id')))]
  })
}

/** The chunks of a run after one of them. */
export function findRunLog(runId: string, afterN: number, { chunksMax, bytesMax }: LogAmount): Command<Row[]> {
  return command('find_run_log', () => query(sql.readRunLog, runId, afterN, bytesMax, chunksMax))
}

/**
 * The log of a run is in a file now, up to its last chunk: the file takes the place of the chunks. Answers whether it does.
 * If not, the term is over, or somebody else has archived or removed the log.
 */
export function archiveLog(term: Term, { runId, lastN, logRef }: ArchivedLog): Command<boolean> {
  return command('archive_log', function* work(): Work<boolean> {
    if ((yield* one(sql.lockEnded, ...fence(term), runId)) === undefined) return false
    const end = yield* one(sql.readLogEnd, runId)
    if (end === undefined) return false
    // Ours, when an earlier try was committed unheard.
    if (end.log_ref !== null) return end.log_ref === logRef
    if (integer(end, 'n') !== lastN) return false
    const named = yield* query(sql.setLogRef, runId, lastN, logRef)
    yield* query(sql.deleteChunks, runId, lastN)
    return named.length > 0
  })
}

export interface ArchivedLog {
  runId: string
  /** Of its last chunk. */
  lastN: number
  logRef: string
}

/** Of those runs that have a log, the file it is in, or null. */
export function findLogRefs(runIds: readonly string[]): Command<Map<string, string | null>> {
  return command('find_log_refs', function* work(): Work<Map<string, string | null>> {
    const rows = yield* each(
      sql.readLogRefs,
      runIds.map((id) => [id]),
    )
    return new Map(rows.map((row) => [text(row, 'run_id'), textOrNull(row, 'log_ref')]))
  })
}

/**
 * Removes the logs of runs, for whoever removes the runs and has locked their users: a part of its transaction, before the runs go. At most so many
 * chunks; false when there may be more, and then it is to be called again. The files follow by themselves (leader/archive.ts).
 */
export function* forgetLogs(runIds: readonly string[], chunksMax: number): Work<boolean> {
  yield* each(
    sql.lockLogged,
    runIds.toSorted().map((id) => [id]),
  )
  const removed = yield* query(sql.deleteLogs, JSON.stringify(runIds), chunksMax)
  yield* freeBytes(removed)
  return removed.length < chunksMax
}

export function hasArchivedLogs(): Command<boolean> {
  return command('has_archived_logs', function* work(): Work<boolean> {
    return (yield* one(sql.readAnyLogRef)) !== undefined
  })
}
