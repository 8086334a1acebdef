import { IchidoError, type RunLogShape } from '@ichido/sdk/protocol'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import type { RunState } from '../../core/run/run-state.ts'
import { type ArchivedChunk, type LogFile, LogUnreadable, logFileOf } from '../../log-archive/port.ts'
import {
  findLogs,
  LOG_END,
  type LogAmount,
  type LogPlace,
  type LogRow,
  type LogRows,
} from '../../store/logs/run-logs.ts'
import { iso, notFound } from '../answers.ts'
import type { Deps } from '../deps.ts'

const TAIL_LENGTH_MAX = 1024 * 1024
const TAIL_CHUNKS_MAX = 10_000
const TAIL_STEP = { chunksMax: 100, bytesMax: 256 * 1024 }

/** The job whose log is read, and the reader. */
export interface LogSource extends Pick<Deps, 'store' | 'logArchive'> {
  caller: Caller
  jobId: string
}

export interface LogPart {
  chunks: RunLogShape[]
  /** False: there is no more at the moment. */
  more: boolean
  /** The state of the job before the last read. */
  state: RunState | null
}

/** True: enough. */
type Take = (chunk: RunLogShape, bytes: number) => boolean

/** Reads the log of a job in parts, from the store or from files, even if the log is archived meanwhile. */
export class LogReader {
  readonly #source: LogSource
  #place: LogPlace
  #open: (ArchivedLog & { chunks: AsyncGenerator<ArchivedChunk> }) | null = null
  /** The file that was tried last. */
  #triedFileId: string | null = null

  constructor(source: LogSource, after: LogPlace) {
    this.#source = source
    this.#place = after
  }

  async read({ chunksMax, bytesMax }: LogAmount): Promise<LogPart> {
    const chunks: RunLogShape[] = []
    let bytes = 0
    const take: Take = (chunk, itsBytes) => {
      this.#place = { runNo: chunk.run_no, n: chunk.n }
      chunks.push(chunk)
      bytes += itsBytes
      return chunks.length >= chunksMax || bytes >= bytesMax
    }
    for (;;) {
      if (await this.#readFile(take)) return { chunks, more: true, state: null }
      const amount = { chunksMax: chunksMax - chunks.length, bytesMax: bytesMax - bytes }
      const { rows, state } = await lookAt(this.#source, 'after', this.#place, amount)
      for (const row of rows) {
        // The chunks before a file are returned first, because the file may be unreadable.
        if (row.log_ref !== null && chunks.length > 0) return { chunks, more: true, state: null }
        const archived = archivedLog(row)
        if (archived !== null) {
          this.#begin(archived)
          break
        }
        if (take(renderStored(row), row.bytes)) return { chunks, more: true, state: null }
      }
      if (this.#open === null) return { chunks, more: false, state }
    }
  }

  async close(): Promise<void> {
    await this.#open?.chunks.return(undefined)
    this.#open = null
  }

  #begin(archived: ArchivedLog): void {
    const afterN = archived.runNo === this.#place.runNo ? this.#place.n : -1
    this.#open = { ...archived, chunks: readArchived(this.#source, archived, afterN) }
  }

  /** True: enough was taken. False: the log of the run has ended. */
  async #readFile(take: Take): Promise<boolean> {
    if (this.#open === null) return false
    const { runNo, lastN, file, chunks } = this.#open
    try {
      for (let next = await chunks.next(); !next.done; next = await chunks.next()) {
        this.#triedFileId = file.fileId
        if (take(renderArchived(runNo, file, next.value), Buffer.byteLength(next.value.text))) return true
      }
      this.#place = { runNo, n: lastN }
    } catch (error) {
      // The file may have been removed with its job since the store was read. The next read shows it.
      if (!(error instanceof LogUnreadable) || this.#triedFileId === file.fileId) throw unavailable(error)
      this.#triedFileId = file.fileId
    }
    this.#open = null
    return false
  }
}

/** A job that the caller may not see is not found. */
async function lookAt(
  { store, caller, jobId }: LogSource,
  way: 'after' | 'before',
  place: LogPlace,
  amount: LogAmount,
): Promise<LogRows> {
  const found = await store.read(findLogs(jobId, way, place, amount))
  if (found === null || !mayRead(caller, found.userId)) throw notFound('job', jobId)
  return found
}

/** An archived log: one row stands for the whole log of a run. */
interface ArchivedLog {
  runNo: number
  lastN: number
  file: LogFile
}

function archivedLog({ run_id, run_no, n, log_ref }: LogRow): ArchivedLog | null {
  if (log_ref === null) return null
  const file = logFileOf(log_ref)
  if (file?.runId === run_id) return { runNo: run_no, lastN: n, file }
  throw new IchidoError('LOG_UNAVAILABLE', `The log of run ${run_id} is in a file whose name this version cannot read`)
}

function readArchived({ logArchive }: LogSource, { file, lastN }: ArchivedLog, afterN: number) {
  if (logArchive !== undefined) return logArchive.read(file, afterN, lastN)
  throw new IchidoError(
    'LOG_UNAVAILABLE',
    `The log of run ${file.runId} was archived, and this node has no folder for artifacts; ask another node`,
  )
}

function unavailable(error: unknown): unknown {
  return error instanceof LogUnreadable ? new IchidoError('LOG_UNAVAILABLE', error.message) : error
}

function renderStored({ run_id, run_no, n, stream, chunk, created_at }: LogRow): RunLogShape {
  if (chunk === null) throw new Error(`Chunk ${n} of run ${run_id} is not stored`)
  return { run_id, run_no, n, stream, text: chunk, created_at: iso(created_at) }
}

function renderArchived(run_no: number, { runId }: LogFile, chunk: ArchivedChunk): RunLogShape {
  const { n, stream, text, createdAtMs } = chunk
  return { run_id: runId, run_no, n, stream, text, created_at: iso(createdAtMs) }
}

/** The last lines of the log of a job, or fewer if they are long. */
export async function readTail(source: LogSource, lines: number): Promise<RunLogShape[]> {
  const tail = new Tail(lines)
  let before: LogPlace = LOG_END
  for (;;) {
    const { rows } = await lookAt(source, 'before', before, TAIL_STEP)
    for (const row of rows) {
      const archived = archivedLog(row)
      const chunks = archived === null ? [renderStored(row)] : await lastOfFile(source, archived, before)
      for (const chunk of chunks) if (!tail.take(chunk)) return tail.chunks.reverse()
      // All of the file was taken, because the tail is not full.
      before = { runNo: row.run_no, n: archived === null ? row.n : -1 }
    }
    if (rows.length === 0) return tail.chunks.reverse()
  }
}

/** The end of a file, as much as a tail can hold, last chunk first. The file is read from its beginning. */
async function lastOfFile(source: LogSource, archived: ArchivedLog, before: LogPlace): Promise<RunLogShape[]> {
  const endN = before.runNo === archived.runNo ? before.n : Number.POSITIVE_INFINITY
  const kept: RunLogShape[] = []
  let length = 0
  try {
    for await (const chunk of readArchived(source, archived, -1)) {
      if (chunk.n >= endN) break
      kept.push(renderArchived(archived.runNo, archived.file, chunk))
      length += chunk.text.length
      for (let [first] = kept; first !== undefined; [first] = kept) {
        if (length - first.text.length < TAIL_LENGTH_MAX && kept.length <= TAIL_CHUNKS_MAX) break
        length -= first.text.length
        kept.shift()
      }
    }
  } catch (error) {
    throw unavailable(error)
  }
  return kept.reverse()
}

/** Takes chunks from the last to the first, until it has enough lines. */
class Tail {
  /** Last chunk first. */
  readonly chunks: RunLogShape[] = []
  #lines: number
  #length = 0

  constructor(lines: number) {
    this.#lines = lines
  }

  /** False: it has enough. */
  take(chunk: RunLogShape): boolean {
    const from = Math.max(this.#beginningIn(chunk.text), chunk.text.length - (TAIL_LENGTH_MAX - this.#length))
    const text = chunk.text.slice(from)
    this.#length += text.length
    if (text !== '') this.chunks.push({ ...chunk, text })
    return this.#lines > 0 && this.#length < TAIL_LENGTH_MAX && this.chunks.length < TAIL_CHUNKS_MAX
  }

  /** The offset at which the first wanted line begins, or 0. A line feed at the very end belongs to the last line. */
  #beginningIn(text: string): number {
    let end = this.#length === 0 && text.endsWith('\n') ? text.length - 1 : text.length
    while (end > 0) {
      const at = text.lastIndexOf('\n', end - 1)
      if (at < 0) return 0
      if (--this.#lines === 0) return at + 1
      end = at
    }
    return 0
  }
}
