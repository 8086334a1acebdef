import { type ChildProcess, spawn } from 'node:child_process'
import type { Mark } from '../../loop/clocks.ts'
import { nodeWorld } from '../world.ts'
import { inherited } from './inherited.ts'
import { killRun, SUPERVISOR_MARKER } from './kill.ts'
import { type ProgramNote, preyOf } from './program-note.ts'
import { eachLine, type Notice, type Order, type ProgramEnd, type SpawnOrder } from './supervision.ts'

/** A program that runs beside its supervisor, as the agent sees it. */
export interface Program {
  /** A heartbeat that was sent at this instant was confirmed: the program may run on. */
  confirm(sent: Mark): void
  stop(graceMs: number): void
  /** Settles when nothing of the program lives any more. */
  ended: Promise<ProgramEnd>
}

/** What to run as a supervisor: program and arguments. */
export type SupervisorCommand = readonly [string, ...string[]]

export function startProgram([file, ...args]: SupervisorCommand, order: SpawnOrder): Program {
  const supervisor = spawn(file, args, {
    // Not in the agent's group: what is sent to that, from a terminal or by an operator, must not end the supervisor.
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
  // Somebody killed the supervisor, or it could not begin: its work falls to the agent.
  await killRun(preyOf(note, leaseId, noteFile), nodeWorld)
  if (notice !== null && 'failed' in notice) throw new Error(notice.failed)
  return { by: 'itself', code: null, signal: 'SIGKILL' }
}
