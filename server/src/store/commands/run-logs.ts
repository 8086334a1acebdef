import type { RunRefusal } from '../../core/run-state.ts'
import { type Command, command } from '../port.ts'
import { insertLogs, lockLogger, readLogEnd, readLogs } from '../sql/run-logs.ts'
import { readFacts } from '../sql/runs.ts'
import { each, integerOrNull, one, query, type Row, type SqlValue, textOrNull, type Work } from '../statement.ts'
import { explain } from './run-facts.ts'

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

export type LogOutcome = { kind: 'stored'; accepted: number } | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

/**
 * What the worker's process wrote, in its order: a chunk that does not come after the last one was there before. What is
 * too much is cut off, and the log says so.
 */
export function storeLogs(item: LogItem): Command<LogOutcome> {
  return command('logs', function* work(): Work<LogOutcome> {
    const { runId, workerId, leaseId } = item
    const run = yield* one(lockLogger, runId, workerId, leaseId)
    if (run === undefined) {
      const [facts] = yield* each(readFacts, [[runId]])
      const reason = explain(facts, { verb: 'heartbeat', workerId, leaseId })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    }
    const end = yield* one(readLogEnd, runId)
    const [lastN, endBytes] = [integerOrNull(end, 'n') ?? -1, integerOrNull(end, 'end_bytes') ?? 0]
    const news = new Map(item.chunks.filter(({ n }) => n > lastN).map((chunk) => [chunk.n, chunk]))
    const rows = cut([...news.values()], endBytes, item.bytesMax).map(({ n, stream, text, endBytes }): SqlValue[] => [
      runId,
      n,
      stream,
      text,
      endBytes,
    ])
    yield* each(insertLogs, rows)
    return { kind: 'stored', accepted: rows.length }
  })
}

type Kept = LogChunk & { endBytes: number }

function cut(chunks: readonly LogChunk[], from: number, bytesMax: number): Kept[] {
  const kept: Kept[] = []
  let endBytes = from
  for (const chunk of chunks.toSorted((a, b) => a.n - b.n)) {
    if (endBytes >= bytesMax) break
    // PostgreSQL holds no NUL.
    const text = chunk.text.replaceAll('\u0000', '\ufffd')
    const bytes = Buffer.byteLength(text)
    if (endBytes + bytes <= bytesMax) {
      endBytes += bytes
      kept.push({ ...chunk, text, endBytes })
      continue
    }
    const fits = Buffer.from(text)
      .subarray(0, bytesMax - endBytes)
      .toString('utf8')
      .replace(/\ufffd+$/, '')
    endBytes = bytesMax
    kept.push({
      ...chunk,
      text: `${fits}\n[The log is longer than ${bytesMax} bytes; the rest is cut off.]\n`,
      endBytes,
    })
  }
  return kept
}

export function findLogs(jobId: string, after: { runNo: number; n: number }, max: number): Command<Row[]> {
  return command('find_logs', () => query(readLogs, jobId, after.runNo, after.n, max))
}

export const logText = (row: Row) => textOrNull(row, 'chunk') ?? ''
