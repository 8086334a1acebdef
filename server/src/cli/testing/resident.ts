import { type ChildProcess, fork } from 'node:child_process'
import { join } from 'node:path'
import { bundled } from '../../../../scripts/testing/programs.ts'
import { nodeArgs } from '../../../../scripts/testing/services.ts'
import type { Ended, Env } from './cli.ts'

const PROCESS = join(import.meta.dirname, 'resident-process.ts')

/** A process that stays and runs one command line after the other: starting one costs 0.4 s of a core. */
class Resident {
  readonly #child: ChildProcess
  busy = false

  constructor() {
    this.#child = fork(bundled(PROCESS), [], { execArgv: nodeArgs, stdio: ['ignore', 'inherit', 'inherit', 'ipc'] })
    // It ends when this process does.
    this.#child.unref()
    this.#child.channel?.unref()
  }

  get gone(): boolean {
    return !this.#child.connected
  }

  run(args: readonly string[], env: Env): Promise<Ended> {
    this.busy = true
    this.#child.channel?.ref()
    return new Promise<Ended>((resolve, reject) => {
      const onExit = (code: number | null) => reject(new Error(`The resident command line ended with ${code}`))
      this.#child.once('exit', onExit)
      this.#child.once('message', (ended: Ended) => {
        this.#child.off('exit', onExit)
        resolve(ended)
      })
      this.#child.send({ args, env })
    }).finally(() => {
      this.busy = false
      this.#child.channel?.unref()
    })
  }
}

let resident: Resident | undefined

/** Null while it is busy with another one. */
export function runResident(args: readonly string[], env: Env): Promise<Ended> | null {
  if (resident === undefined || resident.gone) resident = new Resident()
  return resident.busy ? null : resident.run(args, env)
}
