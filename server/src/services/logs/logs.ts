import { IchidoError, type Page, type RunLogShape } from '@ichido/sdk/protocol'
import type { Topic } from '../../bus/port.ts'
import { storableText } from '../../core/json/text.ts'
import type { Caller } from '../../core/limits/roles.ts'
import { isFinal, type RunState } from '../../core/run/run-state.ts'
import { LOG_START, type LogAmount, type LogChunk, type LogPlace, storeLogs } from '../../store/logs/run-logs.ts'
import { jobIdOf } from '../../store/runs/run-facts.ts'
import { notFound, requireId } from '../answers.ts'
import type { Deps } from '../deps.ts'
import { waitFor } from '../wait.ts'
import { type LogPart, LogReader, type LogSource, readTail } from './log-reader.ts'

/** Where to begin: after a place, or with a number of last lines. */
export type LogBeginning = { after: LogCursor | null } | { tail: number }

/** A `LogPlace` as `run_no.n`. */
type LogCursor = string

/** A chunk, or the end: the job has ended and everything was sent. */
export type LogStep = { kind: 'chunk'; chunk: RunLogShape } | { kind: 'end'; state: RunState }

export interface LogService {
  /** How many chunks were new. */
  append(workerId: string, leaseId: string, chunks: readonly LogChunk[]): Promise<number>
  /** A page of the log of all runs, oldest first. */
  read(caller: Caller, jobId: string, beginning: LogBeginning, limit: number): Promise<Page<RunLogShape>>
  /** The whole log so far, in parts. */
  readAll(caller: Caller, jobId: string, beginning: LogBeginning): Promise<AsyncGenerator<RunLogShape>>
  /** The log so far, and then new chunks as they come, until the job has ended. */
  follow(caller: Caller, jobId: string, beginning: LogBeginning, signal: AbortSignal): Promise<AsyncGenerator<LogStep>>
}

/** The limit of the log of one run; the rest is cut off. */
const LOG_BYTES_MAX = 10 * 1024 * 1024
const PAGE_BYTES_MAX = 4 * 1024 * 1024
/** A slow reader holds at most this much in memory, or one larger chunk. */
const PART: LogAmount = { chunksMax: 100, bytesMax: 256 * 1024 }

export function createLogService(deps: Deps): LogService {
  const { store, bus, evidence } = deps

  /** The first part, and a reader for the rest. Refuses a caller who may not see the job. */
  async function open(caller: Caller, jobId: string, beginning: LogBeginning, amount = PART) {
    requireId('job', jobId)
    const source: LogSource = { ...deps, caller, jobId }
    if ('tail' in beginning) {
      const chunks = await readTail(source, beginning.tail)
      const part: LogPart = { chunks, more: true, state: null }
      return { part, reader: new LogReader(source, placeOf(cursorOf(chunks.at(-1)))) }
    }
    const reader = new LogReader(source, placeOf(beginning.after))
    return { part: await reader.read(amount), reader }
  }

  return {
    async append(workerId, leaseId, chunks) {
      const jobId = jobIdOf(leaseId)
      if (jobId === null) throw notFound('lease', leaseId)
      const storable = chunks.map((chunk) => ({ ...chunk, text: storableText(chunk.text) }))
      const item = { jobId, workerId, leaseId, chunks: storable, bytesMax: LOG_BYTES_MAX }
      const outcome = await store.write(storeLogs(item))
      if (outcome.kind === 'refused') {
        evidence.refused(jobId, outcome.reason)
        throw new IchidoError(outcome.reason)
      }
      if (outcome.accepted > 0) bus.wake([`logs:${outcome.jobId}`])
      return outcome.accepted
    },

    async read(caller, jobId, beginning, limit) {
      const amount = { chunksMax: limit, bytesMax: PAGE_BYTES_MAX }
      const { part, reader } = await open(caller, jobId, beginning, amount)
      await reader.close()
      return { data: part.chunks, next_cursor: part.more ? cursorOf(part.chunks.at(-1)) : null }
    },

    async readAll(caller, jobId, beginning) {
      const { part, reader } = await open(caller, jobId, beginning)
      return partsOf(reader, part)
    },

    async follow(caller, jobId, beginning, signal) {
      const { part, reader } = await open(caller, jobId, beginning)
      const topics: Topic[] = [`job:${jobId}`, `logs:${jobId}`]
      return stepsOf(reader, part, (look) => waitFor(deps, topics, Number.MAX_SAFE_INTEGER, look, signal))
    },
  }
}

async function* partsOf(reader: LogReader, first: LogPart): AsyncGenerator<RunLogShape> {
  try {
    for (let part = first; ; part = await reader.read(PART)) {
      yield* part.chunks
      if (!part.more) return
    }
  } finally {
    await reader.close()
  }
}

type Wait = (look: () => Promise<LogPart | null>) => Promise<LogPart | null>

async function* stepsOf(reader: LogReader, first: LogPart, wait: Wait): AsyncGenerator<LogStep> {
  const look = async () => {
    const part = await reader.read(PART)
    return part.chunks.length > 0 || part.more || hasEnded(part) ? part : null
  }
  try {
    for (let part: LogPart | null = first; part !== null; part = await wait(look)) {
      for (const chunk of part.chunks) yield { kind: 'chunk', chunk }
      if (hasEnded(part)) return yield { kind: 'end', state: part.state }
    }
  } finally {
    await reader.close()
  }
}

/** The job has ended, and the whole log was read. */
function hasEnded(part: LogPart): part is LogPart & { state: RunState } {
  return !part.more && part.state !== null && isFinal(part.state)
}

function placeOf(cursor: LogCursor | null): LogPlace {
  const [runNo, n] = (cursor ?? '').split('.').map(Number)
  return cursor === null || runNo === undefined || n === undefined ? LOG_START : { runNo, n }
}

export function cursorOf(chunk: RunLogShape): LogCursor
export function cursorOf(chunk: RunLogShape | undefined): LogCursor | null
export function cursorOf(chunk: RunLogShape | undefined): LogCursor | null {
  return chunk === undefined ? null : `${chunk.run_no}.${chunk.n}`
}
