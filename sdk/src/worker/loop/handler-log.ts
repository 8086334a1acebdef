import type { LeaseShape } from '../../protocol/index.ts'
import { isPassing, messageOf } from './failure.ts'
import type { RunInHand } from './loop.ts'
import type { LogChunk } from './ports.ts'
import { ABORTED_PART, type PublisherDeps, unlessStopped } from './progress.ts'
import { Pump } from './pump.ts'

const CHUNK_LENGTH = 64 * 1024
/** The log limit of a run; further lines are dropped. */
const LOG_LENGTH_MAX = 8 * 1024 * 1024
const CUT_NOTE = '[The rest of the log was dropped]\n'

/**
 * Sends the log lines of a handler: in order, several in one call, with retries. A log never fails its handler; `onTrouble` is
 * called if lines could not be sent.
 */
export class HandlerLog {
  readonly #lease: LeaseShape
  readonly #deps: PublisherDeps
  /** Created by the first line, because most handlers log nothing. */
  #pump: Pump<LogChunk> | null = null
  #waiting = ''
  #n = 0
  #length = 0
  #closed = false

  constructor(lease: LeaseShape, deps: PublisherDeps) {
    this.#lease = lease
    this.#deps = deps
  }

  readonly log = (line: string): void => {
    if (this.#closed) return
    const text = this.#withinBounds(`${lineOf(line)}\n`)
    this.#waiting += text
    const { world, onTrouble } = this.#deps
    this.#pump ??= new Pump({ world, onTrouble, read: () => this.#take(), send: (chunk) => this.#send(chunk) })
  }

  /** Resolves when all lines are stored or the time is up; a stopped run has little time. Null: the log is empty. */
  flush(run: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> | null {
    this.#closed = true
    return this.#pump && this.#end(this.#pump, run)
  }

  async #end(pump: Pump<LogChunk>, { signal, hold }: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> {
    const { world, onTrouble } = this.#deps
    const late = new AbortController()
    const giveUp = () => late.abort()
    const callOff = world.after(hold.aloneMs * (signal.aborted ? ABORTED_PART : 1), giveUp)
    const heard = await unlessStopped(pump.end(AbortSignal.any([late.signal, hold.lost])), signal, giveUp)
    callOff()
    if (!heard) onTrouble(new Error(`The end of the log of job ${this.#lease.job_id} was not delivered`))
  }

  /** The line that reaches the limit is the last one. */
  #withinBounds(text: string): string {
    const roomLength = LOG_LENGTH_MAX - this.#length
    this.#length += text.length
    if (text.length <= roomLength) return text
    this.#closed = true
    return `${text.slice(0, roomLength).toWellFormed()}\n${CUT_NOTE}`
  }

  #take(): LogChunk | null {
    if (this.#waiting === '') return null
    const text = this.#waiting.slice(0, endOfChunk(this.#waiting))
    this.#waiting = this.#waiting.slice(text.length)
    return { n: this.#n++, stream: 'stdout', text }
  }

  async #send(chunk: LogChunk): Promise<void> {
    try {
      await this.#deps.transport.log(this.#lease.lease_id, [chunk])
    } catch (error) {
      // A permanent refusal means that the lease is lost, so later lines would be refused, too.
      if (!isPassing(error)) {
        this.#closed = true
        this.#waiting = ''
      }
      throw error
    }
  }
}

/** NUL and half characters cannot be stored. */
function lineOf(line: unknown): string {
  const text = typeof line === 'string' ? line : messageOf(line)
  return text.replaceAll('\0', '\ufffd').toWellFormed()
}

/** Does not cut a character in half. */
function endOfChunk(text: string): number {
  return text.slice(0, CHUNK_LENGTH).isWellFormed() ? CHUNK_LENGTH : CHUNK_LENGTH - 1
}
