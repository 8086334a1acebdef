import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import type { Latencies, Order, Pace, Paced, Reply, Round, Settings } from './contestant.ts'
import { reply } from './contestant.ts'
import { host } from './host.ts'

/** A contestant, seen from the process that runs the contest. */
export interface Entrant {
  /** The process to measure; null if it is the contest's own. */
  pid: number | null
  /** Returns jobs per second. */
  run(order: Round): Promise<number>
  fill(jobs: number): Promise<void>
  /** Begins to work. `handled` is told the number of jobs so far. */
  work(pace: Pace, handlerMs: number, handled: (count: number) => void): Promise<void>
  rest(): Promise<void>
  /** Returns the jobs per second that are submitted and handled at the same time. */
  saturate(callers: number, durationMs: number): Promise<number>
  paced(order: Paced): Promise<Latencies>
  close(): Promise<void>
}

interface Channel {
  pid: number | null
  ask(order: Order): Promise<Reply>
  close(): Promise<void>
}

const STOP_WITHIN_MS = 5_000
/** No order takes so long. A contestant that has lost a job must not stop the whole run. */
const STUCK_MS = 1_200_000

/** Starts a contestant in its own process. */
export async function enter(settings: Settings): Promise<Entrant> {
  const program = fileURLToPath(new URL('contestant-process.ts', import.meta.url))
  const child = fork(program, [JSON.stringify(settings)], { execArgv: ['--conditions=ichido-source'] })
  return entrantOn((handled) => forked(child, settings.program, handled))
}

/** Starts a contestant in this process: a test of the benchmark has no time for a dozen processes. */
export function enterHere(settings: Settings): Promise<Entrant> {
  return entrantOn(async (handled) => {
    const hosted = await host(settings, (said) => 'handled' in said && handled(said.handled))
    return { pid: null, ask: hosted.carryOut, close: hosted.close }
  })
}

async function entrantOn(open: (handled: (count: number) => void) => Promise<Channel>): Promise<Entrant> {
  let handled = (_count: number) => {}
  const channel = await open((count) => handled(count))
  async function rate(order: Order): Promise<number> {
    const found = await channel.ask(order)
    if (!('jobsPerSecond' in found)) throw new Error('A contestant did not run its round')
    return found.jobsPerSecond
  }
  return {
    pid: channel.pid,
    run: rate,
    saturate: (callers, saturateMs) => rate({ callers, saturateMs }),
    fill: async (jobs) => void (await channel.ask({ fill: jobs })),
    async work(pace, handlerMs, tell) {
      handled = tell
      await channel.ask({ work: pace, handlerMs })
    },
    rest: async () => void (await channel.ask({ rest: true })),
    async paced(order) {
      const found = await channel.ask(order)
      if (!('startsMs' in found)) throw new Error('A contestant did not tell its latencies')
      return found
    },
    close: channel.close,
  }
}

async function forked(child: ChildProcess, name: string, handled: (count: number) => void): Promise<Channel> {
  await next(child, name, handled)
  return {
    pid: child.pid ?? null,
    ask(order) {
      const answer = next(child, name, handled)
      child.send(order)
      return answer
    },
    async close() {
      if (child.exitCode !== null || child.signalCode !== null) return
      const exited = once(child, 'exit')
      child.disconnect()
      const timer = setTimeout(() => child.kill('SIGKILL'), STOP_WITHIN_MS)
      await exited
      clearTimeout(timer)
    },
  }
}

/** The answer to the last order. Counts of handled jobs come before it and after it. */
function next(child: ChildProcess, name: string, handled: (count: number) => void): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const settle = (act: () => void) => {
      child.off('exit', ended)
      clearTimeout(timer)
      act()
    }
    const timer = setTimeout(() => settle(() => reject(new Error(`${name} does not answer`))), STUCK_MS)
    const heard = (message: unknown) => {
      const found = reply.parse(message)
      if ('handled' in found) return handled(found.handled)
      settle(() => ('failed' in found ? reject(new Error(`${name}: ${found.failed}`)) : resolve(found)))
    }
    const ended = (code: number | null) => settle(() => reject(new Error(`${name} ended with ${code}`)))
    // The listener stays after the answer, because counts still come. The next order replaces it.
    child.removeAllListeners('message')
    child.on('message', heard)
    child.on('exit', ended)
  })
}
