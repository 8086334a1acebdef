import type { LeaseShape } from '../../protocol/index.ts'
import type { WorkerDeps } from '../deps.ts'
import { type Clocks, type Mark, monotonicOnly } from './clocks.ts'
import { type HeldDeps, HeldLease, type Hold, type Keeper, LOOK_MS } from './held-lease.ts'

const LEASES_PER_CALL = 500
/** For how long to wait in one call for somebody who cancels a job. */
const LISTEN_MS = 20_000

type HeartDeps = Pick<WorkerDeps, 'world' | 'transport' | 'onTrouble'> & { clocks?: Clocks }

export interface HeartOptions {
  /** A run that was told to stop still goes on when its job may be handed on. */
  overrun?(lease: LeaseShape): void
  /** False: this lease is not to be kept any more, whatever its run does. */
  mayBeat?(lease: LeaseShape): boolean
}

/**
 * Heartbeats for all leases of a process, as many as are due in one call. They also tell which runs are to stop, but seconds
 * late: while there are any that have run for a moment, it listens for that as well.
 */
export class Heart implements Keeper {
  readonly #deps: HeartDeps
  readonly #clocks: Clocks
  readonly #heldDeps: HeldDeps
  readonly #held = new Map<string, HeldLease>()
  #wake: { atMs: number; callOff: () => void } | null = null
  #listening: AbortController | null = null
  /** Listening failed: not again before a heartbeat shows that somebody is there. */
  #deaf = false
  /** Leases whose runs are to stop, as it was last told. */
  #told: readonly string[] = []

  constructor(deps: HeartDeps, options: HeartOptions = {}) {
    this.#deps = deps
    this.#clocks = deps.clocks ?? monotonicOnly(deps.world)
    this.#heldDeps = {
      clocks: this.#clocks,
      overrun: (lease) => options.overrun?.(lease),
      mayBeat: (lease) => options.mayBeat?.(lease) ?? true,
      beat: (held) => this.#beat([held]),
      letGo: (held) => this.#letGo(held),
    }
  }

  hold(lease: LeaseShape, sent: Mark, run: AbortController): Hold {
    const held = new HeldLease(lease, sent, run, this.#heldDeps)
    this.#held.set(lease.lease_id, held)
    this.#schedule(held.dueInMs(this.#clocks()))
    return held
  }

  #letGo(held: HeldLease): void {
    if (this.#held.get(held.leaseId) === held) this.#held.delete(held.leaseId)
    if (this.#held.size > 0) return
    this.#wake?.callOff()
    this.#wake = null
    this.#listening?.abort()
  }

  #schedule(inMs: number): void {
    const { world } = this.#deps
    const soonMs = Math.max(0, Math.min(inMs, LOOK_MS))
    const atMs = world.monotonic() + soonMs
    if (this.#wake !== null && this.#wake.atMs <= atMs) return
    this.#wake?.callOff()
    this.#wake = { atMs, callOff: world.after(soonMs, () => this.#look()) }
  }

  #look(): void {
    this.#wake = null
    const now = this.#clocks()
    for (const held of [...this.#held.values()]) held.look(now)
    const all = [...this.#held.values()]
    if (all.some((held) => held.wantsBeat(now, 0))) {
      // Those that are nearly due go along, so that the leases of a process end up in one rhythm.
      const due = all.filter((held) => held.wantsBeat(now, held.beatMs / 2))
      for (let at = 0; at < due.length; at += LEASES_PER_CALL) {
        this.#beat(due.slice(at, at + LEASES_PER_CALL)).catch(this.#deps.onTrouble)
      }
    }
    if (all.length === 0) return
    if (this.#listening === null && !this.#deaf) void this.#listen()
    this.#schedule(Math.min(...all.map((held) => held.dueInMs(now))))
  }

  /** Once; the next look begins anew, so that who answers at once is not asked without end. */
  async #listen(): Promise<void> {
    const listening = new AbortController()
    this.#listening = listening
    try {
      const leaseIds = await this.#deps.transport.cancels(this.#told, LISTEN_MS, listening.signal)
      if (leaseIds.length > 0) this.#told = leaseIds
      for (const leaseId of leaseIds) this.#held.get(leaseId)?.cancel()
    } catch {
      this.#deaf = !listening.signal.aborted
    }
    this.#listening = null
  }

  async #beat(leases: HeldLease[]): Promise<void> {
    const sent = this.#clocks()
    for (const held of leases) held.lastBeat = sent
    const answers = await this.#deps.transport.heartbeat(leases.map(({ leaseId }) => leaseId))
    this.#deaf = false
    leases.forEach((held, i) => {
      const answer = answers[i]
      if (answer !== undefined) held.answer(sent, answer.held, answer.cancelRequested)
    })
  }
}
