import { type ChildProcess, spawn } from 'node:child_process'
import { once } from 'node:events'
import { createInterface } from 'node:readline'
import { fileURLToPath } from 'node:url'

const BIN = fileURLToPath(new URL('../../server/src/cli/bin.ts', import.meta.url))
export const CLI = ['--conditions=ichido-source', BIN]

export interface ServiceOptions {
  name: string
  args: readonly string[]
  env: NodeJS.ProcessEnv
  /** The output that shows that it is ready. */
  ready: RegExp
  say(line: string): void
  /** Called if it cannot be started. */
  failed(error: Error): void
}

/** A command of `ichido` as a child process. It is restarted after a kill. */
export class Service {
  readonly #options: ServiceOptions
  #child: ChildProcess | null = null
  #ended: Promise<unknown> = Promise.resolve()
  #stopping = false

  constructor(options: ServiceOptions) {
    this.#options = options
  }

  async start(): Promise<void> {
    const { name, args, env, ready, say, failed } = this.#options
    // It gets its own process group, so that Ctrl-C reaches only this process, which stops one child after the other.
    const child = spawn(process.execPath, [...CLI, ...args], {
      env,
      stdio: ['ignore', 'ignore', 'pipe'],
      detached: true,
    })
    this.#child = child
    this.#ended = once(child, 'exit')
    const said: string[] = []
    const isReady = new Promise<boolean>((resolve) => {
      void this.#ended.then(() => resolve(false))
      createInterface(child.stderr).on('line', (line) => {
        said.push(line)
        if (said.length > 20) said.shift()
        if (ready.test(line)) resolve(true)
      })
    })
    if (!(await isReady)) {
      if (this.#stopping) return
      throw new Error(`The ${name} did not start:\n${said.join('\n')}`)
    }
    say(`${name}: process ${child.pid}`)
    void this.#ended.then(() => {
      if (this.#stopping) return
      say(`${name}: gone; it is started again`)
      this.start().catch(failed)
    })
  }

  /** Kills the process like a crash. */
  kill(): void {
    this.#child?.kill('SIGKILL')
  }

  async stop(withinMs: number): Promise<void> {
    this.#stopping = true
    this.#child?.kill('SIGTERM')
    const late = setTimeout(() => this.kill(), withinMs)
    await this.#ended
    clearTimeout(late)
  }
}
