import type { LogStream } from '../core/run/run-log.ts'

/** What a worker's process wrote at one time. */
export interface ArchivedChunk {
  n: number
  stream: LogStream
  text: string
  createdAtMs: number
}

/**
 * A file that holds the log of a run. Its id is used once: whoever archives a log that somebody else is at, too, or was at
 * when it died, writes another file, and only the one that the store names counts.
 */
export interface LogFile {
  runId: string
  fileId: string
}

/** Where logs are that have left the store. A file is in its place first, and then named by the store. */
export interface LogArchive {
  /** Puts a log in its place for good, and answers with how many bytes it takes there. */
  write(file: LogFile, chunks: AsyncIterable<ArchivedChunk>): Promise<number>
  /** The chunks after one of them, up to the last; throws `LogUnreadable` where they are not all there. */
  read(file: LogFile, afterN: number, lastN: number): AsyncGenerator<ArchivedChunk>
  remove(file: LogFile): Promise<void>
  /** Everything in one of `LOG_SHARDS` parts of the place, also what never got whole. */
  list(shard: number): Promise<LogFile[]>
  /** For how long a file has been there. */
  ageMs(file: LogFile): Promise<number>
}

export const LOG_SHARDS = 256

/** The file that the store names is missing or damaged. */
export class LogUnreadable extends Error {
  override readonly name = 'LogUnreadable'
}

const UUID = '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}'
const REF = new RegExp(`^logs/[0-9a-f]{2}/(${UUID})\\.(${UUID})\\.jsonl\\.gz$`)

/** What the store calls it: its path in the folder that nodes share, of nothing but ids. */
export function logRefOf({ runId, fileId }: LogFile): string {
  const ref = `logs/${runId.slice(-2)}/${runId}.${fileId}.jsonl.gz`
  if (!REF.test(ref)) throw new TypeError(`Not the ids of a log: ${JSON.stringify([runId, fileId])}`)
  return ref
}

/** Null: no name that this version has ever given. */
export function logFileOf(ref: string): LogFile | null {
  const [, runId, fileId] = REF.exec(ref) ?? []
  if (runId === undefined || fileId === undefined) return null
  const file = { runId, fileId }
  return logRefOf(file) === ref ? file : null
}
