import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { closeSync, openSync, readFileSync } from 'node:fs'
import { join } from 'node:path'
import { setTimeout as sleep } from 'node:timers/promises'
import { Trouble } from '../boot/trouble.mjs'
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

/** A server that can be stopped, killed and restarted, and that does not outlive this process. */
export class ServerProcess {
  readonly #folder: string
  readonly #logFile: string
  readonly #guard
  #child: ChildProcess | undefined
  #launch: Launch | undefined

  /** `release` removes the folder, and so does the guard when this process dies. */
  constructor(folder: string) {
    this.#folder = folder
    this.#logFile = join(folder, 'log')
    // QUIT stops PostgreSQL immediately, while TERM waits until its clients have left.
    this.#guard = startGuard(folder, 'QUIT')
  }

  get pid(): number {
    if (!this.running || this.#child?.pid === undefined) throw new Error('the service is not running')
    return this.#child.pid
  }

  get running(): boolean {
    return this.#child !== undefined && !ended(this.#child)
  }

  /** Without an argument it starts as before. */
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
    // Ctrl-C must not reach the detached process: the tests stop their services in their own order.
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

  /** Removes the folder. The service cannot be started again. */
  async release(): Promise<void> {
    await this.end('SIGKILL')
    await this.#guard.release()
  }
}

const ended = (child: ChildProcess) => child.exitCode !== null || child.signalCode !== null

/** The user for servers that refuse to run as root; undefined if this process is not root. */
export function unprivilegedUser(): { name: string; owner: Owner } | undefined {
  if (process.getuid?.() !== 0) return undefined
  const users = readFileSync('/etc/passwd', 'utf8').split('\n')
  const fields = ['postgres:', 'nobody:'].map((name) => users.find((line) => line.startsWith(name))).find(Boolean)
  const [name, , uid, gid] = fields?.split(':') ?? []
  if (!name || !uid || !gid) {
    throw new Trouble('PostgreSQL and PgBouncer cannot run as root, and there is no user `postgres` or `nobody`.')
  }
  return { name, owner: { uid: Number(uid), gid: Number(gid) } }
}
