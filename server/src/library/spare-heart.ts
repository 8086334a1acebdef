import { Worker } from 'node:worker_threads'
import type { World } from '@ichido/sdk'
import type { Clocks } from '@ichido/sdk/worker'
import type pg from 'pg'
import type { Storage } from '../node/start-node.ts'
import { postgresText } from '../store/engines/postgres/migrate.ts'
import { heartbeatWorkers } from '../store/leasing/heartbeat-runs.ts'
import type { SpareConnection, SpareHeartData, SpareNotice, SpareOrder } from './spare-heart-thread.ts'

interface SpareHeartOptions {
  storage: Exclude<Storage, { dataDir: string }>
  world: World
  onTrouble(error: unknown): void
}

const PULSE_MS = 250
const FILE = new URL(`./spare-heart-thread.${import.meta.url.endsWith('.ts') ? 'ts' : 'js'}`, import.meta.url)

/**
 * Sends heartbeats while handlers block the event loop: a thread with its own connection takes over when the pulse of this
 * thread is missing. So a job is not given to another process while its handler computes. A handler that never ends keeps its
 * job. The thread does not keep the process alive.
 */
export class SpareHeart {
  readonly #options: SpareHeartOptions
  readonly #pulse = new Int32Array(new SharedArrayBuffer(4))
  readonly #covered = new BigInt64Array(new SharedArrayBuffer(8))
  readonly #workerIds: string[] = []
  #timer: NodeJS.Timeout | undefined
  #thread: Worker | null = null
  #started: Promise<void> | null = null
  #closed = false

  constructor(options: SpareHeartOptions) {
    this.#options = options
  }

  /** A clock without the time in which the thread sent heartbeats. */
  readonly clocks: Clocks = () => ({
    monotonic: this.#options.world.monotonic() - Number(Atomics.load(this.#covered, 0)) / 1000,
  })

  /** Adds a worker whose leases are kept. */
  keep(workerId: string): void {
    this.#workerIds.push(workerId)
    this.#tell({ workerId })
    if (this.#workerIds.length === 1) this.#checkOptions()
  }

  /** Starts the thread with the first run, because it takes 18 MB. */
  start(): Promise<void> {
    this.#started ??= this.#begin()
    return this.#started
  }

  async close(): Promise<void> {
    this.#closed = true
    clearInterval(this.#timer)
    await this.#thread?.terminate()
  }

  /** Reports options that cannot be copied to a thread, such as a function that checks a certificate, before the first run. */
  #checkOptions(): void {
    const { storage } = this.#options
    try {
      if ('pool' in storage) structuredClone(copyable(storage.pool))
    } catch (error) {
      this.#started = Promise.resolve()
      this.#options.onTrouble(notStarted(error))
    }
  }

  async #begin(): Promise<void> {
    const { storage } = this.#options
    try {
      this.#start('databaseUrl' in storage ? { url: storage.databaseUrl } : { options: await optionsOf(storage.pool) })
    } catch (error) {
      this.#options.onTrouble(notStarted(error))
    }
  }

  #start(connection: SpareConnection): void {
    if (this.#closed) return
    const workerData: SpareHeartData = {
      connection,
      heartbeat: postgresText(heartbeatWorkers.postgres, this.#options.storage.schema ?? 'ichido'),
      workerIds: this.#workerIds,
      pulse: this.#pulse.buffer as SharedArrayBuffer,
      pulseMs: PULSE_MS,
      covered: this.#covered.buffer as SharedArrayBuffer,
    }
    // The thread must not inherit --eval.
    const execArgv = process.execArgv.filter((argument) => argument.startsWith('--conditions='))
    this.#thread = new Worker(FILE, { workerData, execArgv })
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
          `A handler blocked the event loop for ${seconds} s, and nothing else in this process ran. ` +
            'Let it await now and then, or run it in a thread or a separate worker',
        ),
      )
      return
    }
    const { storage } = this.#options
    // The password may have expired.
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

/** The options of a pool that can be copied to a thread, with the current password. */
async function optionsOf(pool: pg.Pool): Promise<pg.ClientConfig> {
  const { password } = pool.options
  return { ...copyable(pool), ...(password === undefined ? {} : { password: await secretOf(password) }) }
}

function copyable({ options }: pg.Pool): pg.ClientConfig {
  const { host, port, user, database, connectionString, ssl } = options
  const known = { host, port, user, database, connectionString, ssl }
  return Object.fromEntries(Object.entries(known).filter(([, value]) => value !== undefined))
}

async function secretOf(password: NonNullable<pg.PoolConfig['password']>): Promise<string> {
  return typeof password === 'function' ? password() : password
}

function notStarted(error: unknown): Error {
  const why = error instanceof Error ? error.message : String(error)
  return new Error(
    `No thread can keep the leases of a handler that blocks the event loop; use databaseUrl, or options that can be copied: ${why}`,
  )
}
