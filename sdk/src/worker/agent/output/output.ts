import { nextSeq, OPEN_STAGES, PROGRESS_STAGE, type Stages, stageRange } from '../../../protocol/index.ts'
import type { LogChunk, WorkerEvent } from '../../loop/transport.ts'
import { parseJson, writeWhole } from './files.ts'
import { Tail } from './tail.ts'
import { readNoteText } from './written-files.ts'

/** In one chunk of a log. */
const CHUNK_BYTES = 64 * 1024
/** Of one run; what a program prints beyond that is dropped. */
const LOG_BYTES_MAX = 8 * 1024 * 1024
const CUT_NOTE = '\n[The rest of the output was dropped]\n'
/** Notes of ours in the log of one run: whoever writes nonsense has seen by then that it is. */
const NOTES_MAX = 20
/** Events in one call. */
const EVENTS_MAX = 100
/** A longer line is no progress. */
const LINE_MAX = 64 * 1024
/** Looked at in one go, whatever comes of it: a program that writes nonsense must not keep the agent from its heartbeats. */
const PIECE_LINES = 200
const PIECE_LENGTH = 256 * 1024

/** Where a log has got to: the chunks that are on their way, and what comes after them. */
interface LogPlace {
  sending: LogChunk[]
  n: number
  bytes: number
  /** In the files of stdout and stderr. */
  at: number[]
  /** How many notes of ours are in it. */
  notes: number
}

/**
 * The log of a run, out of the files that its program writes to. What it reads is noted before it is sent: a number stands for
 * one text, so whoever goes on after this process begins with the very same chunks.
 */
export class RunLog {
  readonly #tails: { stream: LogChunk['stream']; tail: Tail }[]
  readonly #placeFile: string
  #again: LogChunk[]
  #n: number
  #bytes: number
  #notesBefore: number
  #notesGiven = 0
  #notesSent: number
  #notes: string[] = []
  /** stderr stands in the middle of a line. */
  #isOpen = false

  constructor(stdoutFile: string, stderrFile: string, placeFile: string) {
    const { sending, n, bytes, at, notes } = readPlace(placeFile)
    this.#tails = [
      { stream: 'stdout', tail: new Tail(stdoutFile, at[0]) },
      { stream: 'stderr', tail: new Tail(stderrFile, at[1]) },
    ]
    this.#placeFile = placeFile
    this.#again = sending
    this.#n = n
    this.#bytes = bytes
    this.#notesBefore = notes
    this.#notesSent = notes
  }

  /** A line of ours on stderr. Whoever goes on after another process comes to the same notes again: they are there already. */
  note(line: string): void {
    const count = ++this.#notesGiven
    if (count > this.#notesBefore && count <= NOTES_MAX) this.#notes.push(line)
  }

  read(): LogChunk[] | null {
    if (this.#again.length > 0) return this.#again.splice(0)
    const chunks = this.#tails.flatMap(({ stream, tail }) => {
      const text = tail.read(CHUNK_BYTES)
      return text === '' ? [] : this.#chunk(stream, text, tail)
    })
    chunks.push(...this.#noteChunk())
    if (chunks.length === 0) return null
    this.#note(chunks)
    return chunks
  }

  #note(sending: LogChunk[]): void {
    const at = this.#tails.map(({ tail }) => tail.at)
    const place: LogPlace = { sending, n: this.#n, bytes: this.#bytes, at, notes: this.#notesSent }
    try {
      writeWhole(this.#placeFile, JSON.stringify(place))
    } catch {
      // A disk that is full is no reason not to send it.
    }
  }

  #noteChunk(): LogChunk[] {
    const notes = this.#notes.splice(0)
    if (notes.length === 0 || this.#bytes > LOG_BYTES_MAX) return []
    const text = `${this.#isOpen ? '\n' : ''}${notes.map((line) => `[${line}]\n`).join('')}`
    this.#isOpen = false
    this.#notesSent += notes.length
    this.#bytes += text.length
    return [{ n: this.#n++, stream: 'stderr', text }]
  }

  #chunk(stream: LogChunk['stream'], text: string, tail: Tail): LogChunk[] {
    const before = this.#bytes
    this.#bytes += text.length
    if (before > LOG_BYTES_MAX) {
      tail.discard()
      return []
    }
    if (stream === 'stderr') this.#isOpen = !text.endsWith('\n')
    // NUL cannot be stored.
    const clean = text.replaceAll('\0', '\ufffd')
    return [{ n: this.#n++, stream, text: this.#bytes > LOG_BYTES_MAX ? clean + CUT_NOTE : clean }]
  }
}

function readPlace(file: string): LogPlace {
  const start: LogPlace = { sending: [], n: 0, bytes: 0, at: [0, 0], notes: 0 }
  try {
    return { ...start, ...(parseJson(readNoteText(file) ?? '') as LogPlace | undefined) }
  } catch {
    // Whatever somebody put in its place.
    return start
  }
}

/** Lines of JSON, as events of the stage progress; where the job declares stages, also `{"stage", "sub", "data"}` of those. */
export class RunProgress {
  readonly #tail: Tail
  readonly #stages: Stages | null
  readonly #onBadLine: (line: string, why: string) => void
  /** Whole lines that were read, from `#next` on not looked at yet, and the beginning of the one after them. */
  #lines: string[] = []
  #next = 0
  #open = ''
  #told = 0

  constructor(file: string, stages: Stages | null, onBadLine: (line: string, why: string) => void) {
    this.#tail = new Tail(file)
    this.#stages = stages
    this.#onBadLine = onBadLine
  }

  /** Empty: nothing came of this piece, and there is more. */
  read(last: boolean): WorkerEvent[] | null {
    const events: WorkerEvent[] = []
    let length = 0
    for (let lines = 0; lines < PIECE_LINES && length < PIECE_LENGTH && events.length < EVENTS_MAX; lines++) {
      const line = this.#line(last)
      if (line === null) return events.length === 0 ? null : events
      length += line.length
      events.push(...this.#event(line))
    }
    return events
  }

  #line(last: boolean): string | null {
    for (;;) {
      const line = this.#lines[this.#next++]
      if (line !== undefined) return line
      const more = this.#tail.read(CHUNK_BYTES)
      const lines = (this.#open + more).split('\n')
      const open = lines.pop() ?? ''
      // Not whole yet, unless nothing will be added.
      const isWhole = open.length > LINE_MAX || (last && more === '' && open !== '')
      if (isWhole) lines.push(open)
      this.#open = isWhole ? '' : open
      this.#lines = lines
      this.#next = 0
      if (more === '' && !isWhole) return null
    }
  }

  #event(line: string): WorkerEvent[] {
    if (line.trim() === '') return []
    const event = this.#eventOf(line)
    if (typeof event !== 'string') return [event]
    this.#onBadLine(line, event)
    return []
  }

  /** Or why it is none. */
  #eventOf(line: string): WorkerEvent | string {
    if (line.length > LINE_MAX) return `it is longer than ${LINE_MAX / 1024} KB`
    const told = parseJson(line)
    if (told === undefined) return 'it is not JSON'
    const stages = this.#stages ?? OPEN_STAGES
    if (this.#stages !== null && namesStage(told)) {
      const { stage, sub, data = null } = told
      if (typeof sub === 'number') {
        const seq = nextSeq(stages, stage, sub)
        if (seq !== null) return { stage, seq, data }
        const { from, to } = stageRange(stages, stage)
        return `the stage ${stage} has the numbers 0 to ${to - from}, not ${sub}`
      }
      if (Object.hasOwn(stages, stage))
        return `it names the stage ${stage} without "sub", the number in the stage from 0`
    }
    const seq = nextSeq(stages, PROGRESS_STAGE, this.#told + 1)
    if (seq === null)
      return `a job that declares stages may publish only ${this.#told} of these: name one of its stages`
    this.#told++
    return { stage: PROGRESS_STAGE, seq, data: told }
  }
}

function namesStage(told: unknown): told is { stage: string; sub?: unknown; data?: unknown } {
  return typeof told === 'object' && told !== null && 'stage' in told && typeof told.stage === 'string'
}
