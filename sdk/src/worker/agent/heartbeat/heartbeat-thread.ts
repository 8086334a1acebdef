import { Worker } from 'node:worker_threads'
import { IchidoError, type LeaseShape } from '../../../protocol/index.ts'
import type { World } from '../../../world.ts'
import type { Mark } from '../../loop/clocks.ts'
import { Stopped } from '../../loop/failure.ts'
import { aloneMsOf, type Hold, type Keeper } from '../../loop/held-lease.ts'
import type { HeartNotice, HeartOrder, HeartThreadData } from './heartbeat-thread-main.ts'

export interface ThreadHeartOptions {
  /** The program's own file, which is run again as the thread. */
  file: string
  url: string
  token: string
  world: World
  onTrouble(error: unknown): void
  /** Without its thread a process cannot keep its leases. */
  onDeath(error: unknown): void
}

const PULSE_MS = 250

interface Remote {
  run: AbortController
  lost: AbortController
  confirmed: Mark
  listener: (sent: Mark) => void
  asking: { resolve(held: boolean): void; reject(error: unknown): void } | null
}

/** Leases that are kept by a thread of their own, as the thread of the handlers sees them. */
export class ThreadHeart implements Keeper {
  readonly #worker: Worker
  readonly #held = new Map<string, Remote>()
  readonly #options: ThreadHeartOptions
  readonly #pulse = new Int32Array(new SharedArrayBuffer(4))
  #callOffPulse = () => {}

  constructor(options: ThreadHeartOptions) {
    this.#options = options
    const { url, token } = options
    const workerData: HeartThreadData = { role: 'heart', url, token, pulse: this.#pulse.buffer as SharedArrayBuffer }
    this.#worker = new Worker(options.file, { workerData, execArgv: process.execArgv })
    this.#worker.on('message', (notice: HeartNotice) => this.#hear(notice))
    this.#worker.on('error', options.onDeath)
    this.#beatPulse()
  }

  renewed(token: string): void {
    this.#tell({ token })
  }

  async close(): Promise<void> {
    this.#callOffPulse()
    await this.#worker.terminate()
  }

  hold(lease: LeaseShape, sent: Mark, run: AbortController): Hold {
    const leaseId = lease.lease_id
    const remote: Remote = { run, lost: new AbortController(), confirmed: sent, listener: () => {}, asking: null }
    this.#held.set(leaseId, remote)
    this.#tell({ hold: { ...lease, payload: null }, sent })
    run.signal.addEventListener('abort', () => this.#tell({ aborted: leaseId }))
    return {
      lost: remote.lost.signal,
      get isLost() {
        return remote.lost.signal.aborted
      },
      aloneMs: aloneMsOf(lease),
      confirmed: () => remote.confirmed,
      onConfirmed: (callback) => {
        remote.listener = callback
      },
      confirm: (mark) => this.#tell({ confirm: leaseId, sent: mark }),
      ask: () => {
        this.#tell({ ask: leaseId })
        return new Promise((resolve, reject) => {
          remote.asking = { resolve, reject }
        })
      },
      runEnded: () => this.#tell({ runEnded: leaseId }),
      letGo: () => {
        this.#held.delete(leaseId)
        this.#tell({ letGo: leaseId })
      },
    }
  }

  #hear(notice: HeartNotice): void {
    if ('trouble' in notice) {
      this.#options.onTrouble(new Error(notice.trouble))
      return
    }
    const held = this.#held.get(notice.leaseId)
    if (held === undefined) return
    if ('confirmed' in notice) {
      held.confirmed = notice.confirmed
      held.listener(notice.confirmed)
    } else if ('stopped' in notice) {
      const { code, message } = notice.stopped
      if (code === 'LEASE_LOST') held.lost.abort()
      held.run.abort(new Stopped(code, message))
    } else if ('held' in notice.asked) held.asking?.resolve(notice.asked.held)
    else held.asking?.reject(new IchidoError('UNAVAILABLE', notice.asked.trouble))
  }

  #tell(order: HeartOrder): void {
    this.#worker.postMessage(order)
  }

  #beatPulse(): void {
    Atomics.add(this.#pulse, 0, 1)
    this.#callOffPulse = this.#options.world.after(PULSE_MS, () => this.#beatPulse())
  }
}
