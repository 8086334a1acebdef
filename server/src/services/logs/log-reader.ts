import { IchidoError, type RunLogShape } from '@ichido/sdk/protocol'
import { type Caller, mayRead } from '../../core/limits/roles.ts'
import type { RunState } from '../../core/run/run-state.ts'
import { type ArchivedChunk, type LogFile, LogUnreadable, logFileOf } from '../../log-archive/port.ts'
import { findLogs, type LogAmount, type LogPlace, type LogRow, type LogRows } from '../../store/logs/run-logs.ts'
import type { Deps } from '../deps.ts'
import { iso } from '../iso.ts'
import { notFound } from '../not-found.ts'

/** Who reads the log of which job. */
export interface LogSource extends Pick<Deps, 'store' | 'logArchive'> {
  caller: Caller
  jobId: string
}

export interface LogPart {
  chunks: RunLogShape[]
  /** False: this was the last that there is now. */
  more: boolean
  /** Of the job, before the last was looked for. */
  state: RunState | null
}

/** True when it is enough. */
type Take = (chunk: RunLogShape, bytes: number) => boolean

/** Reads the log of a job part by part, wherever it is, and whether or not it is moved meanwhile. */
export class LogReader {
  readonly #source: LogSource
  #place: LogPlace
  #open: (ArchivedLog & { chunks: AsyncGenerator<ArchivedChunk> }) | null = null
  /** What it has found before. */
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
        // A file that cannot be read must not cost what was read before it.
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

  /** True when enough was taken; false when the log of the run has come to its end. */
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
      // It may have been removed with its job since the store was looked at: the next look tells.
      if (!(error instanceof LogUnreadable) || this.#triedFileId === file.fileId) throw unavailable(error)
      this.#triedFileId = file.fileId
    }
    this.#open = null
    return false
  }
}

/** What a caller may not see does not exist for it. */
export async function lookAt(
  { store, caller, jobId }: LogSource,
  way: 'after' | 'before',
  place: LogPlace,
  amount: LogAmount,
): Promise<LogRows> {
  const found = await store.read(findLogs(jobId, way, place, amount))
  if (found === null || !mayRead(caller, found.userId)) throw notFound('job', jobId)
  return found
}

/** A row that stands for the whole log of a run. */
export interface ArchivedLog {
  runNo: number
  lastN: number
  file: LogFile
}

export function archivedLog({ run_id, run_no, n, log_ref }: LogRow): ArchivedLog | null {
  if (log_ref === null) return null
  const file = logFileOf(log_ref)
  if (file?.runId === run_id) return { runNo: run_no, lastN: n, file }
  throw new IchidoError('LOG_UNAVAILABLE', `The log of run ${run_id} is in a file whose name this version cannot read`)
}

export function readArchived({ logArchive }: LogSource, { file, lastN }: ArchivedLog, afterN: number) {
  if (logArchive !== undefined) return logArchive.read(file, afterN, lastN)
  throw new IchidoError(
    'LOG_UNAVAILABLE',
    `The log of run ${file.runId} was archived, and this node has no folder for artifacts; ask another node`,
  )
}

export function unavailable(error: unknown): unknown {
  return error instanceof LogUnreadable ? new IchidoError('LOG_UNAVAILABLE', error.message) : error
}

export function renderStored({ run_id, run_no, n, stream, chunk, created_at }: LogRow): RunLogShape {
  if (chunk === null) throw new Error(`Chunk ${n} of run ${run_id} is not stored`)
  return { run_id, run_no, n, stream, text: chunk, created_at: iso(created_at) }
}

export function renderArchived(run_no: number, { runId }: LogFile, chunk: ArchivedChunk): RunLogShape {
  const { n, stream, text, createdAtMs } = chunk
  return { run_id: runId, run_no, n, stream, text, created_at: iso(createdAtMs) }
}
