import type { Mark } from '../../loop/clocks.ts'
import type { ProgramNote } from './program-note.ts'

/** What an agent and the supervisor of one run say to each other, a line of JSON each. */

/** First of all: what to run. */
export interface SpawnOrder {
  command: string
  folder: string
  env: Record<string, string>
  leaseId: string
  /** Read as stdin. */
  payloadFile: string
  /** Appended to. */
  stdoutFile: string
  stderrFile: string
  progressFile: string
  /** Where the supervisor notes what it is about to begin. */
  noteFile: string
  /** When the last confirmed heartbeat was sent, and how long the program may run on without another. */
  confirmed: Mark
  aloneMs: number
}

export type Order = { spawn: SpawnOrder } | { confirmed: Mark } | { stop: { graceMs: number } }

/** Who ended the program: itself, its deadline, the agent, or the agent's own end. */
export type EndedBy = 'itself' | 'deadline' | 'agent' | 'orphaned'

export interface ProgramEnd {
  by: EndedBy
  code: number | null
  signal: string | null
}

export type Notice = { started: ProgramNote } | { failed: string } | { ended: ProgramEnd }

/** What is left after the polite signal, as a part of the whole time alone. */
export const LAST_PART = 0.1

/** Hands over each whole line; what is not JSON is a bug of ours and thrown. */
export function eachLine<T>(stream: NodeJS.ReadableStream, take: (message: T) => void): void {
  let rest = ''
  stream.setEncoding('utf8')
  stream.on('data', (part: string) => {
    const lines = (rest + part).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) take(JSON.parse(line) as T)
  })
}
