import type { LeaseShape } from '../../protocol/index.ts'
import { type Clocks, elapsedMs, type Mark, monotonicOnly, type World } from '../../world.ts'
import type { Hold, Keeper, WorkerDeps } from './ports.ts'
import { type RunStop, Stopped } from './run-stop.ts'

/** The run stops after this part of the continuation time; the control plane waits for all of it. */
const CONTINUATION_PART = 0.8
/** The part of the time without a heartbeat after which the run is told to stop. */
const TELL_PART = 0.9
/** Heartbeats in the time that a lease lasts without one, so that three may get lost. */
const BEATS = 4
/** How long heartbeats continue for a run that was told to stop. The agent kills its program after this time. */
export const ABORT_GRACE_MS = 10_000
/** How often the clocks are read: a timer does not notice that the machine slept. */
const LOOK_MS = 1_000
const LEASES_PER_CALL = 500
/** How long one call waits for a cancellation. */
const LISTEN_MS = 20_000

/** How long a run may continue after its last confirmed heartbeat was sent. */
export function aloneMsOf(lease: LeaseShape): number {
  // Without a continuation time the run has only its lease.
  return (lease.continuation_seconds || lease.lease_ttl_seconds) * 1000 * CONTINUATION_PART
}

/** Tells the run to stop at its timeout. Returns a function that calls this off. */
export function limitTime(
  world: Pick<World, 'after'>,
  { timeout_seconds: seconds }: LeaseShape,
  run: RunStop,
): () => void {
  if (seconds === null) return nothing
  return world.after(seconds * 1000, () => run.abort(new Stopped('TIMEOUT', `The run took longer than ${seconds} s`)))
}

export const nothing = () => {}

interface HeldDeps {
  clocks: Clocks
  overrun(lease: LeaseShape): void
  mayBeat(lease: LeaseShape): boolean
  beat(held: HeldLease): Promise<void>
  letGo(held: HeldLease): void
}

type HeartDeps = Pick<WorkerDeps, 'world' | 'transport' | 'onTrouble'> & { clocks?: Clocks }

interface HeartOptions {
  /** Called if a run continues although its job may be given to another worker. */
  overrun?(lease: LeaseShape): void
  /** False: the lease must not be kept any more. */
  mayBeat?(lease: LeaseShape): boolean
}

/**
 * Sends the heartbeats for all leases of a process, those that are due in one call. Their answers contain cancellations, but
 * seconds late, so it also waits for cancellations with a long poll.
 */
export class Heart implements Keeper {
  readonly #deps: HeartDeps
  readonly #clocks: Clocks
  readonly #heldDeps: HeldDeps
  readonly #held = new Map<string, HeldLease>()
  #wake: { atMs: number; callOff: () => void } | null = null
  #listening: AbortController | null = null
  /** The long poll failed; it waits until a heartbeat is answered. */
  #deaf = false
  /** The canceled leases of the last answer. */
  #canceled: readonly string[] = []

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

  hold(lease: LeaseShape, sent: Mark, run: RunStop): Hold {
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
      // Leases that are nearly due are included, so that all leases get the same rhythm.
      const due = all.filter((held) => held.wantsBeat(now, held.beatMs / 2))
      for (let at = 0; at < due.length; at += LEASES_PER_CALL) {
        this.#beat(due.slice(at, at + LEASES_PER_CALL)).catch(this.#deps.onTrouble)
      }
    }
    if (all.length === 0) return
    if (this.#listening === null && !this.#deaf) void this.#listen()
    this.#schedule(Math.min(...all.map((held) => held.dueInMs(now))))
  }

  /** One call; the next look starts another one, so that instant answers do not cause a busy loop. */
  async #listen(): Promise<void> {
    const listening = new AbortController()
    this.#listening = listening
    try {
      const leaseIds = await this.#deps.transport.cancels(this.#canceled, LISTEN_MS, listening.signal)
      if (leaseIds.length > 0) this.#canceled = leaseIds
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

/** The state of one lease, and what follows from it. */
class HeldLease implements Hold {
  readonly leaseId: string
  readonly aloneMs: number
  readonly beatMs: number
  lastBeat: Mark
  readonly #lease: LeaseShape
  readonly #run: RunStop
  readonly #deps: HeldDeps
  /** Created on first use, because most runs end before. */
  #lost: AbortController | null = null
  isLost = false
  #confirmed: Mark
  #listener: (sent: Mark) => void = nothing
  #aborted: Mark | null = null
  #runEnded = false
  #overran = false

  constructor(lease: LeaseShape, sent: Mark, run: RunStop, deps: HeldDeps) {
    this.#lease = lease
    this.leaseId = lease.lease_id
    this.aloneMs = aloneMsOf(lease)
    this.beatMs = Math.min(lease.lease_ttl_seconds * 1000, this.aloneMs) / BEATS
    this.#run = run
    this.#deps = deps
    this.#confirmed = sent
    this.lastBeat = sent
    const aborted = () => {
      this.#aborted = deps.clocks()
    }
    if (run.aborted) aborted()
    run.onAbort(aborted)
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

  /** After the run was told to stop, no answer extends its time. */
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
      // No confirmation: the control plane measures from the cancel request, which was before this heartbeat.
      this.cancel()
    } else this.confirm(sent)
  }

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

  /** Whether a heartbeat is due within `earlyMs`. */
  wantsBeat(now: Mark, earlyMs: number): boolean {
    return this.#isKept(now) && elapsedMs(this.lastBeat, now) >= this.beatMs - earlyMs
  }

  /** The time until the next heartbeat or deadline. */
  dueInMs(now: Mark): number {
    const beatInMs = this.beatMs - elapsedMs(this.lastBeat, now)
    const aloneMs = elapsedMs(this.#confirmed, now)
    const tellInMs = this.aloneMs * (this.#aborted === null ? TELL_PART : 1) - aloneMs
    return Math.min(this.#isKept(now) ? beatInMs : LOOK_MS, this.#runEnded || tellInMs <= 0 ? LOOK_MS : tellInMs)
  }

  /** No heartbeats for a handler that ignores its signal. */
  #isKept(now: Mark): boolean {
    if (this.#runEnded) return true
    const heeds = this.#aborted === null || elapsedMs(this.#aborted, now) < Math.min(ABORT_GRACE_MS, this.aloneMs)
    return heeds && this.#deps.mayBeat(this.#lease)
  }
}
