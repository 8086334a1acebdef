import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { startGuard } from './guard.ts'

const READY_WITHIN_MS = 150_000
const LOOK_EVERY_MS = 20
const STOP_WITHIN_MS = 10_000

export type Owner = { uid: number; gid: number }

export type Launch = {
  command: string
  args: string[]
  env?: NodeJS.ProcessEnv
  owner?: Owner | undefined
  ready(pid: number, log: () => string): boolean
}

/** One server that can be stopped, killed and started again, and that does not outlive this process. */
export class ServerProcess {
  readonly #folder: string
  readonly #logFile: string
  readonly #guard
  #child: ChildProcess | undefined
  #launch: Launch | undefined

  /** The folder is removed by `release` or when this process dies. */
  constructor(folder: string) {
    this.#folder = folder
    this.#logFile = join(folder, 'log')
    // To PostgreSQL QUIT means at once, while TERM waits for its clients to leave.
    this.#guard = startGuard(folder, 'QUIT')
  }

  get pid(): number {
    if (!this.running || this.#child?.pid === undefined) throw new Error('the service is not running')
    return this.#child.pid
  }

  get running(): boolean {
    return this.#child !== undefined && !ended(this.#child)
  }

  /** Without an argument: as the last time. */
  async start(launch = this.#launch): Promise<void> {
    if (!launch) throw new Error('the service was never started')
    this.#launch = launch
    const child = this.#spawn(launch)
    if (child.pid === undefined) {
      const [error] = await once(child, 'error')
      throw error
    }
    this.#guard.watch(child.pid)
    const log = () => readFileSync(this.#logFile, 'utf8')
    const tail = () => log().split('\n').slice(-30).join('\n')
    const deadlineMs = Date.now() + READY_WITHIN_MS
    while (!launch.ready(child.pid, log)) {
      if (ended(child)) throw new Error(`${launch.command} ended at once:\n${tail()}`)
      if (Date.now() > deadlineMs)
        throw new Error(`${launch.command} is not ready after ${READY_WITHIN_MS / 1_000} s:\n${tail()}`)
      await sleep(LOOK_EVERY_MS)
    }
  }

  #spawn({ command, args, env, owner }: Launch): ChildProcess {
    const log = openSync(this.#logFile, 'a')
    // Detached: Ctrl-C goes to the tests, and they stop their services in their own order.
    const child = spawn(command, args, {
      cwd: this.#folder,
      detached: true,
      stdio: ['ignore', log, log],
      env: env ?? process.env,
      ...owner,
    })
    closeSync(log)
    child.unref()
    this.#child = child
    return child
  }

  async end(signal: NodeJS.Signals): Promise<void> {
    const child = this.#child
    if (!child || ended(child)) return
    child.ref()
    const exited = once(child, 'exit')
    child.kill(signal)
    const timer = setTimeout(() => child.kill('SIGKILL'), STOP_WITHIN_MS)
    await exited
    clearTimeout(timer)
    this.#guard.watch(0)
  }

  /** After this the folder is gone and the service cannot be started again. */
  async release(): Promise<void> {
    await this.end('SIGKILL')
    await this.#guard.release()
  }
}

const ended = (child: ChildProcess) => child.exitCode !== null || child.signalCode !== null
