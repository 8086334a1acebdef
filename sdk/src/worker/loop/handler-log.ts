import type { LeaseShape } from '../../protocol/index.ts'
import { messageOf } from './failure.ts'
import { isPassing, type RunInHand } from './loop.ts'
import { ABORTED_PART, type PublisherDeps } from './progress.ts'
import { Pump } from './pump.ts'
import type { LogChunk } from './transport.ts'

/** Of one chunk. */
const CHUNK_LENGTH = 64 * 1024
/** Of one run; lines beyond it are dropped. */
const LOG_LENGTH_MAX = 8 * 1024 * 1024
const CUT_NOTE = '[The rest of the log was dropped]\n'

/**
 * What a handler logs, on its way to the log of its run: in order, together when much comes up, and sent again until it was
 * heard. A log never fails its handler: `onTrouble` is told of what could not be sent.
 */
export class HandlerLog {
  readonly #lease: LeaseShape
  readonly #deps: PublisherDeps
  /** Made by the first line: most handlers log nothing. */
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

  /** Settles when all of it is stored, or nobody can wait for it any longer; of a run that was told to stop, soon. Null: it is empty. */
  flush(run: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> | null {
    this.#closed = true
    return this.#pump && this.#end(this.#pump, run)
  }

  async #end(pump: Pump<LogChunk>, { signal, hold }: Pick<RunInHand, 'signal' | 'hold'>): Promise<void> {
    const { world, onTrouble } = this.#deps
    const late = new AbortController()
    const giveUp = () => late.abort()
    const callOff = world.after(hold.aloneMs * (signal.aborted ? ABORTED_PART : 1), giveUp)
    signal.addEventListener('abort', giveUp)
    const heard = await pump.end(AbortSignal.any([late.signal, hold.lost]))
    signal.removeEventListener('abort', giveUp)
    callOff()
    if (!heard) onTrouble(new Error(`The end of the log of job ${this.#lease.job_id} could not be delivered`))
  }

  /** The line that passes the limit is the last one. */
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
      // Refused for good, as what comes after it would be: the lease is lost.
      if (!isPassing(error)) this.#drop()
      throw error
    }
  }

  #drop(): void {
    this.#closed = true
    this.#waiting = ''
  }
}

/** NUL and half a character cannot be stored. */
function lineOf(line: unknown): string {
  const text = typeof line === 'string' ? line : messageOf(line)
  return text.replaceAll('\0', '\ufffd').toWellFormed()
}

/** Not between the halves of a character. */
function endOfChunk(text: string): number {
  return text.slice(0, CHUNK_LENGTH).isWellFormed() ? CHUNK_LENGTH : CHUNK_LENGTH - 1
}
