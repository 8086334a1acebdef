import { setTimeout as pause } from 'node:timers/promises'
import { IchidoError } from '@ichido/sdk/protocol'
import { Unreachable } from '../connection/connect.ts'
import { EXIT, Failure } from './exit.ts'
import { LiveLine, say } from './terminal.ts'

const LOOK_MS = 300
/** A server that restarts is back before this, and what the leader does goes on. */
const UNREACHABLE_MAX_MS = 30_000

export interface Progress<T> {
  look(): Promise<T>
  hasEnded(now: T): boolean
  tell(now: T): string
  /** For whoever stops looking: what goes on, and how to see it again. */
  goesOn: { message: string; advice: string }
}

/** Shows how something that the leader does goes until it has ended, through restarts of the server. */
export async function followProgress<T>({ look, hasEnded, tell, goesOn }: Progress<T>): Promise<T> {
  const interrupt = new AbortController()
  const onInterrupt = () => interrupt.abort()
  process.once('SIGINT', onInterrupt)
  let text = ''
  const live = new LiveLine(() => text)
  try {
    for (let lastAnswerMs = performance.now(); ; ) {
      try {
        const now = await look()
        lastAnswerMs = performance.now()
        if (hasEnded(now)) return now
        const told = tell(now)
        if (told !== text && !process.stderr.isTTY) say(told)
        text = told
      } catch (error) {
        if (!mayPass(error) || performance.now() - lastAnswerMs > UNREACHABLE_MAX_MS) throw error
      }
      await pause(LOOK_MS, undefined, { signal: interrupt.signal })
    }
  } catch (error) {
    if (!interrupt.signal.aborted) throw error
    throw new Failure(goesOn.message, goesOn.advice, EXIT.interrupted)
  } finally {
    live.end()
    process.removeListener('SIGINT', onInterrupt)
  }
}

function mayPass(error: unknown): boolean {
  return error instanceof Unreachable || (error instanceof IchidoError && error.code === 'UNAVAILABLE')
}
