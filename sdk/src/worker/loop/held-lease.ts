import type { LeaseShape } from '../../protocol/index.ts'
import { type Clocks, elapsedMs, type Mark } from './clocks.ts'
import { Stopped } from './failure.ts'

/** Keeps leases alive, and stops the runs whose leases it cannot keep. */
export interface Keeper {
  /** `sent`: when the call that gave us the lease was sent. */
  hold(lease: LeaseShape, sent: Mark, run: AbortController): Hold
}

/** One lease that is being kept. */
export interface Hold {
  /** Aborts when the lease is not ours any more: there is nobody to report to. */
  readonly lost: AbortSignal
  readonly isLost: boolean
  readonly aloneMs: number
  /** When the last call that confirmed the lease was sent. */
  confirmed(): Mark
  onConfirmed(callback: (sent: Mark) => void): void
  /** Another call than a heartbeat, sent at this instant, has confirmed it. */
  confirm(sent: Mark): void
  /** Sends a heartbeat now; false: the lease is lost. Throws when nobody answers. */
  ask(): Promise<boolean>
  /** Nothing of the run runs any more; from now on the lease is only kept for its report. */
  runEnded(): void
  letGo(): void
}

/** The control plane waits for the whole continuation time before it hands the job on; by then this has stopped. */
const CONTINUATION_PART = 0.8
/** Of the time alone: when the run is told, so that it can end by itself before it is ended. */
const TELL_PART = 0.9
/** Heartbeats in the time that a lease or a run is safe without one: three may get lost. */
const BEATS = 4
/** How long a run that was told to stop is believed to be about to. */
export const ABORT_GRACE_MS = 10_000
/** Timers do not notice that the machine slept: the clocks are looked at this often. */
export const LOOK_MS = 1_000

/** How long a run may go on after its last confirmed heartbeat was sent. */
export function aloneMsOf(lease: LeaseShape): number {
  // Without a continuation time nobody waits for this worker; its lease is all that it has.
  return (lease.continuation_seconds || lease.lease_ttl_seconds) * 1000 * CONTINUATION_PART
}

export interface HeldDeps {
  clocks: Clocks
  overrun(lease: LeaseShape): void
  mayBeat(lease: LeaseShape): boolean
  beat(held: HeldLease): Promise<void>
  letGo(held: HeldLease): void
}

/** What is known of one lease, and what follows from it. */
export class HeldLease implements Hold {
  readonly leaseId: string
  readonly aloneMs: number
  readonly beatMs: number
  lastBeat: Mark
  readonly #lease: LeaseShape
  readonly #run: AbortController
  readonly #deps: HeldDeps
  /** Made when somebody wants to hear of it: most runs end before. */
  #lost: AbortController | null = null
  isLost = false
  #confirmed: Mark
  #listener: (sent: Mark) => void = () => {}
  #aborted: Mark | null = null
  #runEnded = false
  #overran = false

  constructor(lease: LeaseShape, sent: Mark, run: AbortController, deps: HeldDeps) {
    this.#lease = lease
    this.leaseId = lease.lease_id
    this.aloneMs = aloneMsOf(lease)
    this.beatMs = Math.min(lease.lease_ttl_seconds * 1000, this.aloneMs) / BEATS
    this.#run = run
    this.#deps = deps
    this.#confirmed = sent
    this.lastBeat = sent
    if (run.signal.aborted) this.#aborted = deps.clocks()
    run.signal.addEventListener('abort', () => {
      this.#aborted = deps.clocks()
    })
  }

  get lost(): AbortSignal {
    this.#lost ??= new AbortController()
    if (this.isLost) this.#lost.abort()
    return this.#lost.signal
  }

  confirmed(): Mark {
    return this.#confirmed
  }

  onConfirmed(callback: (sent: Mark) => void): void {
    this.#listener = callback
  }

  /** Once the run was told to stop, its time runs: no answer gives it more. */
  confirm(sent: Mark): void {
    if (this.#aborted !== null || elapsedMs(this.#confirmed, sent) <= 0) return
    this.#confirmed = sent
    this.#listener(sent)
  }

  async ask(): Promise<boolean> {
    await this.#deps.beat(this)
    return !this.isLost
  }

  runEnded(): void {
    this.#runEnded = true
  }

  letGo(): void {
    this.#deps.letGo(this)
  }

  answer(sent: Mark, held: boolean, cancelRequested: boolean): void {
    if (!held) {
      this.letGo()
      this.isLost = true
      this.#lost?.abort()
      this.#run.abort(new Stopped('LEASE_LOST', 'The lease is lost'))
    } else if (cancelRequested) {
      // Counts as no confirmation: the control plane's patience began when the wish was made, before this heartbeat.
      this.cancel()
    } else this.confirm(sent)
  }

  /** Somebody wishes that the run stops. */
  cancel(): void {
    this.#run.abort(new Stopped('CANCELED', 'The job was canceled'))
  }

  look(now: Mark): void {
    if (this.#runEnded) return
    const aloneMs = elapsedMs(this.#confirmed, now)
    if (aloneMs >= this.aloneMs * TELL_PART) {
      this.#run.abort(new Stopped('CONTINUATION_LOST', 'No heartbeat was confirmed in time'))
    }
    if (aloneMs >= this.aloneMs && !this.#overran) {
      this.#overran = true
      this.#deps.overrun(this.#lease)
    }
  }

  /** Within `earlyMs` at the latest. */
  wantsBeat(now: Mark, earlyMs: number): boolean {
    return this.#isKept(now) && elapsedMs(this.lastBeat, now) >= this.beatMs - earlyMs
  }

  /** How long until something about it is to be done. */
  dueInMs(now: Mark): number {
    const beatInMs = this.beatMs - elapsedMs(this.lastBeat, now)
    const aloneMs = elapsedMs(this.#confirmed, now)
    const tellInMs = this.aloneMs * (this.#aborted === null ? TELL_PART : 1) - aloneMs
    return Math.min(this.#isKept(now) ? beatInMs : LOOK_MS, this.#runEnded || tellInMs <= 0 ? LOOK_MS : tellInMs)
  }

  /** A handler that does not heed its signal must not keep its run by our heartbeats. */
  #isKept(now: Mark): boolean {
    if (this.#runEnded) return true
    const heeds = this.#aborted === null || elapsedMs(this.#aborted, now) < Math.min(ABORT_GRACE_MS, this.aloneMs)
    return heeds && this.#deps.mayBeat(this.#lease)
  }
}
