import { Worker } from 'node:worker_threads'
import type { World } from '@ichido/sdk'
import type { Clocks } from '@ichido/sdk/worker'
import type pg from 'pg'
import type { Storage } from '../node/main.ts'
import type { SpareConnection, SpareHeartData, SpareNotice, SpareOrder } from './spare-heart-thread.ts'

export interface SpareHeartOptions {
  storage: Exclude<Storage, { dataDir: string }>
  world: World
  onTrouble(error: unknown): void
}

const PULSE_MS = 250
const FILE = new URL(`./spare-heart-thread.${import.meta.url.endsWith('.ts') ? 'ts' : 'js'}`, import.meta.url)

/**
 * Heartbeats for a process whose handlers hold up its event loop: a thread with a connection of its own stands in while the
 * pulse of this one is missing. So a job is not given to another process while its handler computes. Nobody ends a handler
 * that never lets go: it keeps its job. The thread does not keep the process alive.
 */
export class SpareHeart {
  readonly #options: SpareHeartOptions
  readonly #pulse = new Int32Array(new SharedArrayBuffer(4))
  readonly #covered = new BigInt64Array(new SharedArrayBuffer(8))
  readonly #workerIds: string[] = []
  #timer: NodeJS.Timeout | undefined
  #thread: Worker | null = null
  #starting = false
  #closed = false

  constructor(options: SpareHeartOptions) {
    this.#options = options
  }

  /** The time in which the thread stood in does not count: nobody was alone in it. */
  readonly clocks: Clocks = () => ({
    monotonic: this.#options.world.monotonic() - Number(Atomics.load(this.#covered, 0)) / 1000,
  })

  /** Also for what this worker leases. */
  keep(workerId: string): void {
    this.#workerIds.push(workerId)
    this.#tell({ workerId })
    if (this.#starting) return
    this.#starting = true
    const { storage } = this.#options
    // At once, where nothing is to be waited for: the first job may hold everything up.
    if ('databaseUrl' in storage) this.#start({ url: storage.databaseUrl })
    else
      void optionsOf(storage.pool).then(
        (options) => this.#start({ options }),
        (error: unknown) => this.#options.onTrouble(notStarted(error)),
      )
  }

  async close(): Promise<void> {
    this.#closed = true
    clearInterval(this.#timer)
    await this.#thread?.terminate()
  }

  #start(connection: SpareConnection): void {
    if (this.#closed) return
    const workerData: SpareHeartData = {
      connection,
      schema: this.#options.storage.schema ?? 'ichido',
      workerIds: this.#workerIds,
      pulse: this.#pulse.buffer as SharedArrayBuffer,
      pulseMs: PULSE_MS,
      covered: this.#covered.buffer as SharedArrayBuffer,
    }
    // Of a program that was given with --eval the thread must not inherit that.
    const execArgv = process.execArgv.filter((argument) => argument.startsWith('--conditions='))
    try {
      this.#thread = new Worker(FILE, { workerData, execArgv })
    } catch (error) {
      // Options that cannot be given to a thread, such as a function that checks a certificate.
      this.#options.onTrouble(notStarted(error))
      return
    }
    this.#thread.on('message', (notice: SpareNotice) => this.#hear(notice))
    this.#thread.on('error', (error) => this.#options.onTrouble(notStarted(error)))
    this.#thread.unref()
    this.#timer = setInterval(() => Atomics.add(this.#pulse, 0, 1), PULSE_MS)
    this.#timer.unref()
  }

  #hear(notice: SpareNotice): void {
    if ('blockedMs' in notice) {
      const seconds = (notice.blockedMs / 1000).toFixed(1)
      this.#options.onTrouble(
        new Error(
          `A handler held up the event loop for ${seconds} s: nothing else of this process was done meanwhile. ` +
            'Let it await now and then, or give it a thread or a worker of its own',
        ),
      )
      return
    }
    const { storage } = this.#options
    // Its password may have been for a while only.
    if ('pool' in storage)
      void optionsOf(storage.pool).then(
        (options) => this.#tell({ connection: { options } }),
        () => {},
      )
  }

  #tell(order: SpareOrder): void {
    this.#thread?.postMessage(order)
  }
}

/** What a thread can be given of a pool's options. */
async function optionsOf({ options }: pg.Pool): Promise<pg.ClientConfig> {
  const { host, port, user, database, connectionString, ssl, password } = options
  const known = { host, port, user, database, connectionString, ssl }
  const given = Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined))
  return { ...given, ...(password === undefined ? {} : { password: await secretOf(password) }) }
}

async function secretOf(password: NonNullable<pg.PoolConfig['password']>): Promise<string> {
  return typeof password === 'function' ? password() : password
}

function notStarted(error: unknown): Error {
  const why = error instanceof Error ? error.message : String(error)
  return new Error(
    `No thread keeps the leases of a handler that holds up the event loop; use databaseUrl, or options that can be copied: ${why}`,
  )
}
