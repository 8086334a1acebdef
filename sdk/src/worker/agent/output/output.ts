import { closeSync, constants, fstatSync, ftruncateSync, readSync } from 'node:fs'
import { nextSeq, OPEN_STAGES, PROGRESS_STAGE, type Stages, stageRange } from '../../../protocol/index.ts'
import type { LogChunk, WorkerEvent } from '../../loop/ports.ts'
import { openRegular, parseJson, readNoteText, unlessRefused, writeWhole } from './files.ts'

/** The size of a log chunk. */
const CHUNK_BYTES = 64 * 1024
/** The log limit of a run; further output is dropped. */
const LOG_BYTES_MAX = 8 * 1024 * 1024
const CUT_NOTE = '\n[The rest of the output was dropped]\n'
/** The maximum number of the agent's own notes in the log of a run. */
const NOTES_MAX = 20
const EVENTS_MAX = 100
/** A longer line is not published as progress. */
const LINE_MAX = 64 * 1024
/** The limits of one read, so that a program that writes nonsense does not delay the heartbeats. */
const PIECE_LINES = 200
const PIECE_LENGTH = 256 * 1024

/** The position of a log: the chunks being sent, and the place after them. */
interface LogPlace {
  sending: LogChunk[]
  n: number
  bytes: number
  /** The offsets in the files of stdout and stderr. */
  at: number[]
  notes: number
}

/**
 * Reads the log of a run from the files that its program writes. The chunks are noted before they are sent: a chunk number
 * stands for one text, so the next process of the agent must send the same chunks again.
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
  /** True while stderr ends in the middle of a line. */
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

  /** Adds a line to stderr. The notes of an earlier process come again in the same order, and are skipped. */
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
      // The log is sent even if the disk is full.
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
    // The program may have put anything in its place.
    return start
  }
}

/**
 * Reads lines of JSON as events of the stage `progress`. If the job declares stages, `{"stage", "sub", "data"}` is an event of
 * its stage.
 */
export class RunProgress {
  readonly #tail: Tail
  readonly #stages: Stages | null
  readonly #onBadLine: (line: string, why: string) => void
  /** The lines that were read; those from `#next` on are not parsed yet. `#open` is the incomplete line after them. */
  #lines: string[] = []
  #next = 0
  #open = ''
  #published = 0

  constructor(file: string, stages: Stages | null, onBadLine: (line: string, why: string) => void) {
    this.#tail = new Tail(file)
    this.#stages = stages
    this.#onBadLine = onBadLine
  }

  /** Null: there is nothing to read. Empty: the lines so far made no event, and there are more. */
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
      // The last line may lack its newline after the program has ended.
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

  /** Returns the event, or the reason why the line is none. */
  #eventOf(line: string): WorkerEvent | string {
    if (line.length > LINE_MAX) return `it is longer than ${LINE_MAX / 1024} KB`
    const value = parseJson(line)
    if (value === undefined) return 'it is not JSON'
    const stages = this.#stages ?? OPEN_STAGES
    if (this.#stages !== null && namesStage(value)) {
      const { stage, sub, data = null } = value
      if (typeof sub === 'number') {
        const seq = nextSeq(stages, stage, sub)
        if (seq !== null) return { stage, seq, data }
        const { from, to } = stageRange(stages, stage)
        return `the stage ${stage} has the numbers 0 to ${to - from}, not ${sub}`
      }
      if (Object.hasOwn(stages, stage))
        return `it names the stage ${stage} without "sub", the number in the stage from 0`
    }
    const seq = nextSeq(stages, PROGRESS_STAGE, this.#published + 1)
    if (seq === null)
      return `a job that declares stages may publish only ${this.#published} of these: name one of its stages`
    this.#published++
    return { stage: PROGRESS_STAGE, seq, data: value }
  }
}

function namesStage(value: unknown): value is { stage: string; sub?: unknown; data?: unknown } {
  return typeof value === 'object' && value !== null && 'stage' in value && typeof value.stage === 'string'
}

/** Reads the text that is appended to a file. With files instead of pipes, neither the program nor the agent waits. */
export class Tail {
  readonly #path: string
  readonly #decoder = new TextDecoder()
  #at: number

  constructor(path: string, at = 0) {
    this.#path = path
    this.#at = at
  }

  get at(): number {
    return this.#at
  }

  /**
   * Reads up to `bytesMax` more bytes; '' if there are none, or if the program removed or replaced the file. Half a character
   * waits for its other half.
   */
  read(bytesMax: number): string {
    const fd = unlessRefused(() => openRegular(this.#path))
    if (fd === null) {
      this.#at = 0
      return ''
    }
    try {
      const { size } = fstatSync(fd)
      // The program wrote with > instead of >>.
      if (size < this.#at) this.#at = 0
      const buffer = Buffer.alloc(Math.min(bytesMax, size - this.#at))
      const bytes = readSync(fd, buffer, 0, buffer.length, this.#at)
      const whole = buffer.subarray(0, bytes - halfAtEnd(buffer.subarray(0, bytes)))
      this.#at += whole.length
      return this.#decoder.decode(whole, { stream: true })
    } finally {
      closeSync(fd)
    }
  }

  /** Truncates the file, so that a program with much output does not fill the disk. */
  discard(): void {
    const fd = unlessRefused(() => openRegular(this.#path, constants.O_WRONLY))
    this.#at = 0
    if (fd === null) return
    try {
      ftruncateSync(fd)
    } finally {
      closeSync(fd)
    }
  }
}

/** How many of the last bytes begin a UTF-8 character that is not complete. */
function halfAtEnd(bytes: Buffer): number {
  for (let back = 1; back <= Math.min(3, bytes.length); back++) {
    const byte = bytes[bytes.length - back] ?? 0
    if (byte < 0x80) return 0
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : 2
    if (byte >= 0xc0) return back < length ? back : 0
  }
  return 0
}
