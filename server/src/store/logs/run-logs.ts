import { bytesLeft } from '../../core/limits/quota.ts'
import type { RunRefusal, RunState } from '../../core/run/run-state.ts'
import { addBytes, lockForBytes } from '../limits/bytes.ts'
import { type Command, command } from '../port.ts'
import { explain } from '../runs/run-facts.ts'
import { readFacts } from '../runs/runs.sql.ts'
import { each, integerOrNull, one, query, type Row, type SqlValue, text, type Work } from '../statement.ts'
import * as sql from './run-logs.sql.ts'

export interface LogChunk {
  n: number
  stream: 'stdout' | 'stderr'
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
 * What the worker's process wrote, in its order: a chunk that does not come after the last one was there before. What is
 * too much, for one log or for what its user may store, is cut off, and the log says so. Locks: the user, the run.
 */
export function storeLogs(item: LogItem): Command<LogOutcome> {
  return command('logs', function* work(): Work<LogOutcome> {
    const { runId, workerId, leaseId } = item
    const owner = (yield* one(sql.readLogOwner, { run_id: runId }))?.user_id ?? null
    const quota = owner === null ? null : yield* lockForBytes(owner)
    const run = yield* one(sql.lockLogger, runId, workerId, leaseId)
    if (run === undefined) {
      const [facts] = yield* each(readFacts, [[runId]])
      const reason = explain(facts, { verb: 'heartbeat', workerId, leaseId })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    }
    const end = yield* one(sql.readLogEnd, runId)
    const [lastN, endBytes] = [integerOrNull(end, 'n') ?? -1, integerOrNull(end, 'end_bytes') ?? 0]
    const news = new Map(item.chunks.filter(({ n }) => n > lastN).map((chunk) => [chunk.n, chunk]))
    const kept = cut([...news.values()], endBytes, item.bytesMax, quota === null ? 0 : bytesLeft(quota))
    yield* each(
      sql.insertLogs,
      kept.map(({ n, stream, text, endBytes }, i): SqlValue[] => [
        runId,
        n,
        stream,
        text,
        endBytes,
        end === undefined && i === 0,
      ]),
    )
    const stored = kept.reduce((sum, chunk) => sum + Buffer.byteLength(chunk.text), 0)
    if (owner !== null && quota?.maxBytes != null) yield* addBytes([[owner, stored]])
    return { kind: 'stored', jobId: text(run, 'job_id'), accepted: kept.length }
  })
}

type Kept = LogChunk & { endBytes: number }

/** What fits into the log, and into what its user may still store. The line that says that something is missing is stored, too. */
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
  /** A run that is archived has one row, at the place of its last chunk, with its `log_ref`. */
  rows: Row[]
}

export interface LogAmount {
  chunksMax: number
  /** The chunk that passes it is the last; a single one may be as long as the log of a run. */
  bytesMax: number
}

/**
 * What comes after a place, or before it, the last of it first. The state is read first: what an ended job's runs wrote is
 * all there by then.
 */
export function findLogs(
  jobId: string,
  way: 'after' | 'before',
  { runNo, n }: LogPlace,
  { chunksMax, bytesMax }: LogAmount,
): Command<LogRows | null> {
  return command('find_logs', function* work(): Work<LogRows | null> {
    const job = yield* one(sql.readLogJob, jobId)
    if (job === undefined) return null
    const rows = yield* query(way === 'after' ? sql.readLogs : sql.readLogsBack, jobId, runNo, n, chunksMax, bytesMax)
    return { userId: text(job, 'user_id'), state: text(job, 'state') as RunState, rows }
  })
}
