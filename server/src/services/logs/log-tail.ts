import type { RunLogShape } from '@ichido/sdk/protocol'
import { LOG_END, type LogPlace } from '../../store/logs/run-logs.ts'
import {
  type ArchivedLog,
  archivedLog,
  type LogSource,
  lookAt,
  readArchived,
  renderArchived,
  renderStored,
  unavailable,
} from './log-reader.ts'

const LENGTH_MAX = 1024 * 1024
const CHUNKS_MAX = 10_000
const STEP = { chunksMax: 100, bytesMax: 256 * 1024 }

/** The last lines of the log of a job, from its end backwards; where they are long, fewer of them. */
export async function readTail(source: LogSource, lines: number): Promise<RunLogShape[]> {
  const tail = new Tail(lines)
  let before: LogPlace = LOG_END
  for (;;) {
    const { rows } = await lookAt(source, 'before', before, STEP)
    for (const row of rows) {
      const archived = archivedLog(row)
      const chunks = archived === null ? [renderStored(row)] : await lastOfFile(source, archived, before)
      for (const chunk of chunks) if (!tail.take(chunk)) return tail.chunks.reverse()
      // Of a file there is nothing more than what was taken, or the tail would be full.
      before = { runNo: row.run_no, n: archived === null ? row.n : -1 }
    }
    if (rows.length === 0) return tail.chunks.reverse()
  }
}

/** As much of it as a tail can hold at most, the last first. A file is read from its beginning, but not kept. */
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
        if (length - first.text.length < LENGTH_MAX && kept.length <= CHUNKS_MAX) break
        length -= first.text.length
        kept.shift()
      }
    }
  } catch (error) {
    throw unavailable(error)
  }
  return kept.reverse()
}

/** Takes chunks from the last to the first, until it has so many lines. */
class Tail {
  /** The last first. */
  readonly chunks: RunLogShape[] = []
  #lines: number
  #length = 0

  constructor(lines: number) {
    this.#lines = lines
  }

  /** False when it has enough. */
  take(chunk: RunLogShape): boolean {
    const from = Math.max(this.#beginningIn(chunk.text), chunk.text.length - (LENGTH_MAX - this.#length))
    const text = chunk.text.slice(from)
    this.#length += text.length
    if (text !== '') this.chunks.push({ ...chunk, text })
    return this.#lines > 0 && this.#length < LENGTH_MAX && this.chunks.length < CHUNKS_MAX
  }

  /** Where in a chunk the first of the lines begins, or 0. A line feed at the very end is the last line's own. */
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
