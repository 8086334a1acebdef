import { type ChildProcess, spawn } from 'node:child_process'
import type { Mark } from '../../../world.ts'
import { nodeWorld } from '../world.ts'
import { inherited } from './inherited.ts'
import { killRun, type ProgramNote, preyOf, SUPERVISOR_MARKER } from './kill.ts'

/** The part of the time without a heartbeat that is left after SIGTERM. */
export const LAST_PART = 0.1

/** The first message to a supervisor. Agent and supervisor exchange lines of JSON. */
export interface SpawnOrder {
  command: string
  folder: string
  env: Record<string, string>
  leaseId: string
  /** Becomes stdin. */
  payloadFile: string
  stdoutFile: string
  stderrFile: string
  progressFile: string
  /** The supervisor writes the note about its program here. */
  noteFile: string
  /** When the last confirmed heartbeat was sent, and how long the program may run without another. */
  confirmed: Mark
  aloneMs: number
}

export type Order = { spawn: SpawnOrder } | { confirmed: Mark } | { stop: { graceMs: number } }

/** `orphaned`: the agent has died. */
export type EndedBy = 'itself' | 'deadline' | 'agent' | 'orphaned'

export interface ProgramEnd {
  by: EndedBy
  code: number | null
  signal: string | null
}

export type Notice = { started: ProgramNote } | { failed: string } | { ended: ProgramEnd }

/** A program that runs beside its supervisor; this is the agent's side. */
export interface Program {
  /** Tells the supervisor that the heartbeat sent at this instant was confirmed. */
  confirm(sent: Mark): void
  stop(graceMs: number): void
  /** Resolves when every process of the program has ended. */
  ended: Promise<ProgramEnd>
}

/** The program and arguments of a supervisor. */
export type SupervisorCommand = readonly [string, ...string[]]

export function startProgram([file, ...args]: SupervisorCommand, order: SpawnOrder): Program {
  const supervisor = spawn(file, args, {
    // Not in the agent's group: a signal to that group must not end the supervisor.
    detached: true,
    cwd: '/',
    env: { ...inherited(process.env), [SUPERVISOR_MARKER]: order.leaseId },
    stdio: ['pipe', 'pipe', 'inherit'],
  })
  const send = (message: Order) => void supervisor.stdin?.write(`${JSON.stringify(message)}\n`)
  supervisor.stdin?.on('error', () => {})
  const ended = conclusion(supervisor, order)
  send({ spawn: order })
  return {
    confirm: (confirmed) => send({ confirmed }),
    stop: (graceMs) => send({ stop: { graceMs } }),
    ended,
  }
}

async function conclusion(supervisor: ChildProcess, { leaseId, noteFile }: SpawnOrder): Promise<ProgramEnd> {
  let note: ProgramNote | null = null
  const notice = await new Promise<Notice | null>((resolve) => {
    if (supervisor.stdout === null) return resolve(null)
    eachLine<Notice>(supervisor.stdout, (message) => {
      if ('started' in message) note = message.started
      else resolve(message)
    })
    supervisor.on('error', (error) => resolve({ failed: error.message }))
    supervisor.on('close', () => resolve(null))
  })
  if (notice !== null && 'ended' in notice) return notice.ended
  // The supervisor was killed or could not start, so the agent kills the program.
  await killRun(preyOf(note, leaseId, noteFile), nodeWorld)
  if (notice !== null && 'failed' in notice) throw new Error(notice.failed)
  return { by: 'itself', code: null, signal: 'SIGKILL' }
}

/** Calls back for each line; a line that is not JSON is a bug and throws. */
export function eachLine<T>(stream: NodeJS.ReadableStream, take: (message: T) => void): void {
  let rest = ''
  stream.setEncoding('utf8')
  stream.on('data', (part: string) => {
    const lines = (rest + part).split('\n')
    rest = lines.pop() ?? ''
    for (const line of lines) take(JSON.parse(line) as T)
  })
}
