import { setTimeout as pause } from 'node:timers/promises'
import { IchidoError, type RedriveShape } from '@ichido/sdk/protocol'
import { type Connection, Unreachable } from './connect.ts'
import { EXIT, Failure } from './exit.ts'
import { commandLine } from './self.ts'
import { LiveLine, say } from './terminal.ts'

const LOOK_MS = 300
/** A server that restarts is back before this, and its redrives go on. */
const UNREACHABLE_MAX_MS = 30_000

/** Shows how a redrive goes until it has ended, through restarts of the server. Whoever stops looking leaves it running. */
export async function followRedrive(connection: Connection, redriveId: string): Promise<RedriveShape> {
  const interrupt = new AbortController()
  const onInterrupt = () => interrupt.abort()
  process.once('SIGINT', onInterrupt)
  let text = ''
  const live = new LiveLine(() => text)
  try {
    for (let lastAnswerMs = performance.now(); ; ) {
      try {
        const now = await connection.ask<RedriveShape>('GET', `/v1/dead-letters/redrives/${redriveId}`)
        lastAnswerMs = performance.now()
        if (now.state !== 'running') return now
        const told = tellRedrive(now)
        if (told !== text && !process.stderr.isTTY) say(told)
        text = told
      } catch (error) {
        if (!mayPass(error) || performance.now() - lastAnswerMs > UNREACHABLE_MAX_MS) throw error
      }
      await pause(LOOK_MS, undefined, { signal: interrupt.signal })
    }
  } catch (error) {
    if (!interrupt.signal.aborted) throw error
    throw new Failure(`Redrive ${redriveId} goes on without us.`, howToGoOn(redriveId), EXIT.interrupted)
  } finally {
    live.end()
    process.removeListener('SIGINT', onInterrupt)
  }
}

function mayPass(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof IchidoError && error.code === 'UNAVAILABLE')
}

function howToGoOn(redriveId: string): string {
  const lines = [`  ${commandLine(`dead progress ${redriveId}`)}`, `  ${commandLine(`dead abort ${redriveId}`)}`]
  return ['Look at it with', lines[0], 'or end it with', lines[1]].join('\n')
}

export function tellRedrive({ matched, redriven, waiting, skipped }: RedriveShape): string {
  const parts = [`${redriven} of ${matched} redriven`]
  if (waiting > 0) parts.push(`${waiting} wait for a quota`)
  if (skipped > 0) parts.push(`${skipped} skipped`)
  return parts.join(', ')
}
