import { bytesLeft } from '../../core/limits/quota.ts'
import { LOG_STREAMS, type LogStream, RUN_STATES, type RunRefusal, type RunState } from '../../core/run/run-state.ts'
import { readOwnerOfJob } from '../jobs/job-owner.ts'
import { addBytes, lockForBytes } from '../limits/bytes.ts'
import { type Command, command, commandIn } from '../port.ts'
import { JOB_IN_ROOMS, STATE } from '../runs/rooms.sql.ts'
import { explainRefusal, factsOf, tokenOf } from '../runs/run-facts.ts'
import { HOLDER } from '../runs/runs.sql.ts'
import { each, one, query, type RowOf, statement, type Work } from '../statement.ts'
import { EXPIRED } from '../system/retention.sql.ts'

/**
 * The log of a run is a row for each chunk, or, once it is archived, one row that names its file. Every change holds
 * the lock of the run.
 */

const stream = { passOn: LOG_STREAMS } as const

const LOGGER = `SELECT job_id, run_id, run_no FROM ichido.held
    WHERE job_id = $job_id AND worker_id = $worker_id AND token = $token AND started_at IS NOT NULL`

/** Guards the holder and RUNNING. The row lock orders the log of a run. */
const lockLogger = statement('lock_logger', {
  params: HOLDER,
  row: { job_id: 'text', run_id: 'text', run_no: 'integer' },
  postgres: `${LOGGER} FOR NO KEY UPDATE`,
  sqlite: LOGGER,
})

/** Finds the last chunk of the run's log. */
export const readLogEnd = statement('read_log_end', {
  params: { run_id: 'text' },
  row: { n: 'integer', end_bytes: 'integer?', log_ref: 'text?' },
  sql: 'SELECT n, end_bytes, log_ref FROM ichido.run_logs WHERE run_id = $run_id ORDER BY n DESC LIMIT 1',
})

/** `end_bytes` is the length of the log with this chunk. `head` marks the chunk that the log begins with. */
const insertLogs = statement('insert_logs', {
  params: {
    job_id: 'text',
    run_id: 'text',
    run_no: 'integer',
    n: 'integer',
    stream,
    chunk: 'text',
    end_bytes: 'integer',
    head: 'flag',
  },
  row: {},
  postgres: `INSERT INTO ichido.run_logs (job_id, run_id, run_no, n, stream, chunk, end_bytes, head, created_at)
    SELECT t.*, now_ms() FROM unnest($job_id::uuid[], $run_id::uuid[], $run_no::integer[], $n::integer[], $stream::text[],
        $chunk::text[], $end_bytes::bigint[], $head::boolean[])
      AS t(job_id, run_id, run_no, n, stream, chunk, end_bytes, head)`,
  sqlite: `INSERT INTO ichido.run_logs (job_id, run_id, run_no, n, stream, chunk, end_bytes, head, created_at)
    VALUES ($job_id, $run_id, $run_no, $n, $stream, $chunk, $end_bytes, $head, now_ms())`,
})

/** Does not find a job whose result has expired. */
const readLogJob = statement('read_log_job', {
  params: { job_id: 'text' },
  row: { user_id: 'text', state: { oneOf: RUN_STATES } },
  sql: `SELECT j.user_id, ${STATE} AS state FROM ${JOB_IN_ROOMS}
    WHERE j.id = $job_id AND NOT ${EXPIRED}`,
})

export const PLACED_ROW = {
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
export function within(places: string, order: string): string {
  return `SELECT p.run_no, p.run_id, p.n, p.bytes, c.stream, c.chunk, c.created_at, c.log_ref
    FROM (SELECT s.*, sum(bytes) OVER (ORDER BY ${order} ROWS BETWEEN UNBOUNDED PRECEDING AND 1 PRECEDING) AS bytes_before
      FROM (${places} ORDER BY ${order} LIMIT $chunks_max) s) p
    JOIN ichido.run_logs c ON c.run_id = p.run_id AND c.n = p.n
    WHERE p.bytes_before IS NULL OR p.bytes_before < $bytes_max ORDER BY ${order.replaceAll(/run_no|\bn\b/g, 'p.$&')}`
}

export const PLACES = `SELECT l.run_no, l.run_id, l.n, coalesce(octet_length(l.chunk), 0) AS bytes FROM ichido.run_logs l`

/** Reads the log of a job after a place. */
const readLogs = statement('read_logs', {
  params: { job_id: 'text', run_no: 'integer', n: 'integer', chunks_max: 'integer', bytes_max: 'integer' },
  row: PLACED_ROW,
  sql: within(
    `${PLACES} WHERE l.job_id = $job_id AND (l.run_no > $run_no OR (l.run_no = $run_no AND l.n > $n))`,
    'run_no, n',
  ),
})

/**
 * Reads backwards from a place, the last chunk first. A run that was archived since its last chunks were read has one row,
 * wherever in the run the place is. The place -1 is before the beginning of a run, and finds nothing of it.
 */
const readLogsBack = statement('read_logs_back', {
  params: { job_id: 'text', run_no: 'integer', n: 'integer', chunks_max: 'integer', bytes_max: 'integer' },
  row: PLACED_ROW,
  sql: within(
    `${PLACES} WHERE l.job_id = $job_id
      AND (l.run_no < $run_no OR (l.run_no = $run_no AND (l.n < $n OR (l.log_ref IS NOT NULL AND $n >= 0))))`,
    'run_no DESC, n DESC',
  ),
})

export interface LogChunk {
  n: number
  stream: LogStream
  text: string
}

interface LogItem {
  jobId: string
  workerId: string
  leaseId: string
  chunks: readonly LogChunk[]
  /** The maximum for the whole log of a run. */
  bytesMax: number
}

type LogOutcome =
  | { kind: 'stored'; jobId: string; accepted: number }
  | { kind: 'refused'; reason: RunRefusal | 'NOT_FOUND' }

/**
 * Stores output of the worker's process, in its order. A chunk that does not come after the last stored chunk is a repeat.
 * Output beyond the limit of a log, or of the user's bytes, is cut off, and the log says so. Locks: the user, the run.
 */
export function storeLogs(item: LogItem): Command<LogOutcome> {
  return commandIn('users', 'logs', function* work(): Work<LogOutcome> {
    const { jobId, workerId, leaseId } = item
    const owner = (yield* one(readOwnerOfJob, { job_id: jobId }))?.user_id ?? null
    const quota = owner === null ? null : yield* lockForBytes(owner)
    const run = yield* one(lockLogger, { job_id: jobId, worker_id: workerId, token: tokenOf(leaseId) })
    if (run === undefined) {
      const facts = yield* factsOf([item])
      const reason = explainRefusal(facts.get(leaseId), { verb: 'heartbeat', workerId, leaseId })
      return { kind: 'refused', reason: reason === 'repeat' ? 'LEASE_LOST' : reason }
    }
    const end = yield* one(readLogEnd, run)
    const [lastN, endBytes] = [end?.n ?? -1, end?.end_bytes ?? 0]
    const news = new Map(item.chunks.filter(({ n }) => n > lastN).map((chunk) => [chunk.n, chunk]))
    const kept = cut([...news.values()], endBytes, item.bytesMax, quota === null ? 0 : bytesLeft(quota))
    yield* each(
      insertLogs,
      kept.map(({ n, stream, text, endBytes }, i) => ({
        ...run,
        n,
        stream,
        chunk: text,
        end_bytes: endBytes,
        head: end === undefined && i === 0,
      })),
    )
    const stored = kept.reduce((sum, chunk) => sum + Buffer.byteLength(chunk.text), 0)
    if (owner !== null && quota?.maxBytes != null) yield* addBytes([[owner, stored]])
    return { kind: 'stored', jobId, accepted: kept.length }
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

/** A chunk. An archived run has one row with its `log_ref`, at the place of its last chunk. */
export type LogRow = RowOf<typeof readLogs>

export interface LogAmount {
  chunksMax: number
  /** The chunk that reaches it is the last. A single chunk may be as long as the log of a run. */
  bytesMax: number
}

/**
 * Reads after a place, or backwards before it, the last chunk first. The state is read first, so the log of an ended
 * job is complete.
 */
export function findLogs(
  jobId: string,
  way: 'after' | 'before',
  { runNo, n }: LogPlace,
  { chunksMax, bytesMax }: LogAmount,
): Command<LogRows | null> {
  return command('find_logs', function* work(): Work<LogRows | null> {
    const job = yield* one(readLogJob, { job_id: jobId })
    if (job === undefined) return null
    const params = { job_id: jobId, run_no: runNo, n, chunks_max: chunksMax, bytes_max: bytesMax }
    const rows = yield* query(way === 'after' ? readLogs : readLogsBack, params)
    return { userId: job.user_id, state: job.state, rows }
  })
}
