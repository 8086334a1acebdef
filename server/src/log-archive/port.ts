import type { LogStream } from '../core/run/run-state.ts'

/** A chunk of output of the worker's process. */
export interface ArchivedChunk {
  n: number
  stream: LogStream
  text: string
  createdAtMs: number
}

/**
 * A file with the log of a run. Its id is used once: two leaders that archive the same log write two files, and only
 * the one that the store names counts.
 */
export interface LogFile {
  runId: string
  fileId: string
}

/** Keeps logs that have left the store. A file is durable before the store names it. */
export interface LogArchive {
  /** Stores a log durably, and returns the size of its file. */
  write(file: LogFile, chunks: AsyncIterable<ArchivedChunk>): Promise<number>
  /** Reads the chunks after `afterN` up to `lastN`. It throws `LogUnreadable` if one is missing. */
  read(file: LogFile, afterN: number, lastN: number): AsyncGenerator<ArchivedChunk>
  remove(file: LogFile): Promise<void>
  /** Lists one of `LOG_SHARDS` subfolders, including incomplete files. */
  list(shard: number): Promise<LogFile[]>
  /** The age of a file. */
  ageMs(file: LogFile): Promise<number>
}

export const LOG_SHARDS = 256

/** The file that the store names is missing or damaged. */
export class LogUnreadable extends Error {
  override readonly name = 'LogUnreadable'
}

const UUID = '[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}'
const REF = new RegExp(`^logs/[0-9a-f]{2}/(${UUID})\\.(${UUID})\\.jsonl\\.gz$`)

/** The path of the file in the shared folder. It consists of ids only. */
export function logRefOf({ runId, fileId }: LogFile): string {
  const ref = `logs/${runId.slice(-2)}/${runId}.${fileId}.jsonl.gz`
  if (!REF.test(ref)) throw new TypeError(`Not the ids of a log: ${JSON.stringify([runId, fileId])}`)
  return ref
}

/** Returns null if the name is not of this form. */
export function logFileOf(ref: string): LogFile | null {
  const [, runId, fileId] = REF.exec(ref) ?? []
  if (runId === undefined || fileId === undefined) return null
  const file = { runId, fileId }
  return logRefOf(file) === ref ? file : null
}
