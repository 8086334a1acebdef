import { writeSync } from 'node:fs'
import { parentPort, Worker } from 'node:worker_threads'
import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { lineForTerminal } from '../../terminal.ts'
import { elapsedMs, type Mark, type World } from '../../world.ts'
import { aloneMsOf, Heart, limitTime } from '../loop/heart.ts'
import { httpWorkerTransport } from '../loop/http.ts'
import type { Hold, Keeper } from '../loop/ports.ts'
import { RunStop, Stopped } from '../loop/run-stop.ts'
import { machineClocks, nodeWorld } from './world.ts'

interface HeartThreadData {
  role: 'heart'
  url: string
  token: string
  /** The handlers' thread increments it while its event loop runs. */
  pulse: SharedArrayBuffer
}

/** Messages to the thread, and from it. */
type HeartOrder =
  | { hold: LeaseShape; sent: Mark }
  | { confirm: string; sent: Mark }
  | { ask: string }
  | { aborted: string }
  | { runEnded: string }
  | { letGo: string }
  | { token: string }
type HeartNotice =
  | { leaseId: string; confirmed: Mark }
  | { leaseId: string; stopped: { code: Stopped['code']; message: string } }
  | { leaseId: string; asked: { held: boolean } | { trouble: string } }
  | { trouble: string }

interface ThreadHeartOptions {
  /** The agent program, which runs again as the thread. */
  file: string
  url: string
  token: string
  world: World
  onTrouble(error: unknown): void
  /** Called when the thread ends, because the process then cannot keep its leases. */
  onDeath(error: unknown): void
}

const PULSE_MS = 250

interface Remote {
  run: RunStop
  lost: AbortController
  confirmed: Mark
  listener: (sent: Mark) => void
  asking: { resolve(held: boolean): void; reject(error: unknown): void } | null
}

/** Keeps leases by a heartbeat thread; this is the side of the handlers' thread. */
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

  hold(lease: LeaseShape, sent: Mark, run: RunStop): Hold {
    const leaseId = lease.lease_id
    const remote: Remote = { run, lost: new AbortController(), confirmed: sent, listener: () => {}, asking: null }
    this.#held.set(leaseId, remote)
    this.#tell({ hold: { ...lease, payload: null }, sent })
    run.onAbort(() => this.#tell({ aborted: leaseId }))
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

/**
 * Sends heartbeats from a separate thread: a handler that blocks the event loop does not lose its lease, and a handler that
 * never ends does not keep it. If a run still continues when its job may be given to another worker, the process is killed.
 */
export function beatInThread({ url, token, pulse }: HeartThreadData): void {
  const port = parentPort
  if (port === null) throw new Error('This is a thread')
  const tell = (notice: HeartNotice) => port.postMessage(notice)
  let current = token
  const transport = httpWorkerTransport({ url, token: () => current, world: nodeWorld })
  const onTrouble = (error: unknown) => tell({ trouble: wordsOf(error) })
  const isAlive = watchPulse(new Int32Array(pulse))
  const heart = new Heart(
    { world: nodeWorld, clocks: machineClocks, transport, onTrouble },
    { overrun: endProcess, mayBeat: isAlive },
  )
  /** The handlers' thread has told the run to stop, and knows the reason. */
  const TOLD = new Stopped('STOPPED', '')
  const holds = new Map<string, { hold: Hold; run: RunStop; callOff: () => void }>()

  function begin(lease: LeaseShape, sent: Mark): void {
    const leaseId = lease.lease_id
    const run = new RunStop()
    run.onAbort(() => {
      const { reason } = run
      if (reason !== undefined && reason !== TOLD)
        tell({ leaseId, stopped: { code: reason.code, message: reason.message } })
    })
    const hold = heart.hold(lease, sent, run)
    hold.onConfirmed((confirmed) => tell({ leaseId, confirmed }))
    // The handlers' thread has the same timer, but a blocked event loop does not run it.
    holds.set(leaseId, { hold, run, callOff: limitTime(nodeWorld, lease, run) })
  }

  port.on('message', (order: HeartOrder) => {
    if ('hold' in order) return begin(order.hold, order.sent)
    if ('token' in order) {
      current = order.token
      return
    }
    const [leaseId = ''] = Object.values(order).filter((value) => typeof value === 'string')
    const held = holds.get(leaseId)
    if (held === undefined) return
    if ('confirm' in order) held.hold.confirm(order.sent)
    else if ('aborted' in order) held.run.abort(TOLD)
    else if ('ask' in order) {
      held.hold.ask().then(
        (isHeld) => tell({ leaseId, asked: { held: isHeld } }),
        (error: unknown) => tell({ leaseId, asked: { trouble: wordsOf(error) } }),
      )
    } else {
      held.callOff()
      if ('runEnded' in order) held.hold.runEnded()
      else {
        held.hold.letGo()
        holds.delete(leaseId)
      }
    }
  })
}

/** A handlers' thread without a pulse for the continuation time of a run is stuck in that run. */
function watchPulse(pulse: Int32Array): (lease: LeaseShape) => boolean {
  let last = { count: 0, seen: machineClocks() }
  return (lease) => {
    const now = machineClocks()
    const count = Atomics.load(pulse, 0)
    if (count !== last.count) last = { count, seen: now }
    return elapsedMs(last.seen, now) < (lease.continuation_seconds || lease.lease_ttl_seconds) * 1000
  }
}

function endProcess({ kind, job_id: jobId, attempt }: LeaseShape): void {
  const what = `job ${jobId}, attempt ${attempt}, kind ${kind}`
  writeSync(2, `ichido: a handler ignored its signal, so this process ends: ${lineForTerminal(what)}\n`)
  process.kill(process.pid, 'SIGKILL')
}

function wordsOf(error: unknown): string {
  return error instanceof Error ? error.message : String(error)
}
