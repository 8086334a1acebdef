import { bytesLeft } from '../../core/limits/quota.ts'
import type { LogStream } from '../../core/run/run-log.ts'
import type { RunRefusal, RunState } from '../../core/run/run-state.ts'
import { addBytes, lockForBytes } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { explain } from '../runs/run-facts.ts'
import { readFacts } from '../runs/runs.sql.ts'
import { each, one, query, type RowOf, type Work } from '../statement.ts'
import * as sql from './run-logs.sql.ts'

export interface LogChunk {
  n: number
  stream: LogStream
  text: string
}

export interface LogItem {
  runId: string
  workerId: string
  leaseId: string
  chunks: readonly LogChunk[]
  /** Of the whole log of a run. */
  bytesMax: number
}

export type LogOutcome =
  | { kind: 'stored'; jobId: string; accepted: number }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

/**
 * Stores output of the worker's process, in its order. A chunk that does not come after the last stored chunk is a repeat.
 * Output beyond the limit of a log, or of the user's bytes, is cut off, and the log says so. Locks: the user, the run.
 */
export function storeLogs(item: LogItem): Command<LogOutcome> {
  return command('logs', function* work(): Work<LogOutcome> {
    const { runId, workerId, leaseId } = item
    const owner = (yield* one(sql.readLogOwner, { run_id: runId }))?.user_id ?? null
    const quota = owner === null ? null : yield* lockForBytes(owner)
    const run = yield* one(sql.lockLogger, { run_id: runId, worker_id: workerId, lease_id: leaseId })
    if (run === undefined) {
      const [facts] = yield* each(readFacts, [{ id: runId }])
      const reason = explain(facts, { verb: 'heartbeat', workerId, leaseId })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    }
    const end = yield* one(sql.readLogEnd, { run_id: runId })
    const [lastN, endBytes] = [end?.n ?? -1, end?.end_bytes ?? 0]
    const news = new Map(item.chunks.filter(({ n }) => n > lastN).map((chunk) => [chunk.n, chunk]))
    const kept = cut([...news.values()], endBytes, item.bytesMax, quota === null ? 0 : bytesLeft(quota))
    yield* each(
      sql.insertLogs,
      kept.map(({ n, stream, text, endBytes }, i) => ({
        run_id: runId,
        n,
        stream,
        chunk: text,
        end_bytes: endBytes,
        head: end === undefined && i === 0,
      })),
    )
    const stored = kept.reduce((sum, chunk) => sum + Buffer.byteLength(chunk.text), 0)
    if (owner !== null && quota?.maxBytes != null) yield* addBytes([[owner, stored]])
    return { kind: 'stored', jobId: run.job_id, accepted: kept.length }
  })
}

type Kept = LogChunk & { endBytes: number }

/** Keeps the text that fits into the log and into the user's bytes. A line in the log says that text is missing. */
function cut(chunks: readonly LogChunk[], from: number, logMax: number, userLeft: number): Kept[] {
  const kept: Kept[] = []
  let [endBytes, left] = [from, userLeft]
  for (const chunk of chunks.toSorted((a, b) => a.n - b.n)) {
    if (endBytes >= logMax) break
    // PostgreSQL holds no NUL.
    let text = chunk.text.replaceAll('\u0000', '\ufffd')
    const bytes = Buffer.byteLength(text)
    if (endBytes + bytes > logMax) text = shortened(text, logMax - endBytes, longer(logMax))
    const full = Buffer.byteLength(text) > left
    if (full) text = shortened(text, left - Buffer.byteLength(USER_FULL), USER_FULL)
    if (Buffer.byteLength(text) > left) break
    left -= Buffer.byteLength(text)
    endBytes = Math.min(logMax, endBytes + bytes)
    kept.push({ ...chunk, text, endBytes })
    if (full) break
  }
  return kept
}

const longer = (logMax: number) => `\n[The log is longer than ${logMax} bytes; the rest is cut off.]\n`
const USER_FULL = '\n[The user may store no more bytes; the rest is cut off.]\n'

function shortened(text: string, bytes: number, mark: string): string {
  const fits = Buffer.from(text).subarray(0, Math.max(0, bytes)).toString('utf8')
  return `${fits.replace(/\ufffd+$/, '')}${mark}`
}

/** A place in the log of a job: the number of the run, and of the chunk in it. */
export interface LogPlace {
  runNo: number
  n: number
}

export const LOG_START: LogPlace = { runNo: 0, n: -1 }
export const LOG_END: LogPlace = { runNo: 2 ** 31 - 1, n: 0 }

export interface LogRows {
  userId: string
  state: RunState
  rows: LogRow[]
}

/** A chunk. A run that is archived has one row, at the place of its last chunk, with its `log_ref`. */
export type LogRow = RowOf<typeof sql.readLogs>

export interface LogAmount {
  chunksMax: number
  /** The chunk that passes it is the last; a single one may be as long as the log of a run. */
  bytesMax: number
}

/**
 * Reads on after a place, or backwards before it, the last chunk first. The state is read first: the log of an ended job is
 * complete by then.
 */
export function findLogs(
  jobId: string,
  way: 'after' | 'before',
  { runNo, n }: LogPlace,
  { chunksMax, bytesMax }: LogAmount,
): Command<LogRows | null> {
  return command('find_logs', function* work(): Work<LogRows | null> {
    const job = yield* one(sql.readLogJob, { job_id: jobId })
    if (job === undefined) return null
    const params = { job_id: jobId, run_no: runNo, n, chunks_max: chunksMax, bytes_max: bytesMax }
    const rows = yield* query(way === 'after' ? sql.readLogs : sql.readLogsBack, params)
    return { userId: job.user_id, state: job.state, rows }
  })
}
