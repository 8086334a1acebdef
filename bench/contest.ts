import { type ChildProcess, fork } from 'node:child_process'
import { once } from 'node:events'
import { fileURLToPath } from 'node:url'
import { type Drain, type Order, type Reply, type Round, reply, type Settings, type Starts } from './contestant.ts'

/** A contestant, seen from the process that runs the contest. */
export interface Entrant {
  name: Settings['name']
  /** Returns jobs per second. */
  run(order: Round | Drain): Promise<number>
  /** Returns the milliseconds from each submit until its handler began. */
  starts(order: Starts): Promise<number[]>
  close(): Promise<void>
}

const STOP_WITHIN_MS = 5_000

export async function enter(settings: Settings): Promise<Entrant> {
  const program = fileURLToPath(new URL('contestant-process.ts', import.meta.url))
  const child = fork(program, [JSON.stringify(settings)], { execArgv: ['--conditions=ichido-source'] })
  await next(child, settings.name)
  function ask(order: Order): Promise<Reply> {
    const answer = next(child, settings.name)
    child.send(order)
    return answer
  }
  return {
    name: settings.name,
    async run(order) {
      const found = await ask(order)
      if (!('jobsPerSecond' in found)) throw new Error(`${settings.name} did not run its round`)
      return found.jobsPerSecond
    },
    async starts(order) {
      const found = await ask(order)
      if (!('startsMs' in found)) throw new Error(`${settings.name} did not tell its starts`)
      return found.startsMs
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

function next(child: ChildProcess, name: string): Promise<Reply> {
  return new Promise((resolve, reject) => {
    const settle = (act: () => void) => {
      child.off('message', heard)
      child.off('exit', ended)
      act()
    }
    const heard = (message: unknown) => {
      const found = reply.parse(message)
      settle(() => ('failed' in found ? reject(new Error(`${name}: ${found.failed}`)) : resolve(found)))
    }
    const ended = (code: number | null) => settle(() => reject(new Error(`${name} ended with ${code}`)))
    child.on('message', heard)
    child.on('exit', ended)
  })
}
