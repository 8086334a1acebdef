import { askedMsOf } from '../../client/retry.ts'
import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { sleep } from '../../world.ts'
import type { WorkerDeps } from '../deps.ts'
import { type Clocks, elapsedMs, type Mark, monotonicOnly } from './clocks.ts'
import { failure, Stopped } from './failure.ts'
import { Heart } from './heart.ts'
import { aloneMsOf, type Hold, type Keeper } from './held-lease.ts'
import { GIVEN_UP, Pacing } from './pacing.ts'
import { type NextCall, Reporter } from './reporter.ts'
import { leftBehind, overrun, unreported } from './run-troubles.ts'
import type { FailReport, FinishReport, LeaseCall, RunReport } from './transport.ts'

/** What the loop hands to whoever does the work. */
export interface RunInHand {
  lease: LeaseShape
  /** Aborts with a `Stopped` when the job is canceled, its time is up, its lease is lost, or the worker must stop. */
  signal: AbortSignal
  hold: Hold
  /** From 0, below `concurrency`, and no other run's at the same time. */
  slot: number
  /** Nothing of it runs any more, and it has all the time that its lease has: what it wrote is still to be told. */
  ended(): void
}

/** Released: the run ended because the worker stops; that is nobody's fault and costs no retry. */
export type Outcome = { result: FinishReport } | { failure: FailReport } | 'released'

export interface LoopOptions {
  queues: readonly string[]
  kinds: readonly string[]
  concurrency: number
  /** Start runs in the call that leases them; otherwise by a call of its own right before the work begins. */
  startAtOnce: boolean
  /** How long `close` waits for a run that was told to stop, and for its report, before it leaves them; default: for ever. */
  leaveAfterMs?: number
  /** Never throws. */
  work(run: RunInHand): Promise<Outcome>
}

interface Run {
  lease: LeaseShape
  controller: AbortController
  /** Until it has ended, or was left behind. */
  atWork: boolean
  /** Nothing of ours keeps it or ends it any more. */
  letGo(): void
  /** Made when its report is to be tried again: most are heard at once. */
  patience: Patience | null
}

interface Patience {
  over: AbortSignal
  end(): void
}

/** A lease whose answer took longer than this is confirmed by a heartbeat before the work begins. */
const FRESH_MS = 1_000
/** In one call. */
const LEASES_MAX = 1_000
const RETRY_FIRST_MS = 250
const RETRY_MAX_MS = 30_000

/** Leases as many runs as there is room for, keeps their leases alive, and reports how they end. */
export class WorkerLoop {
  readonly #options: LoopOptions
  readonly #deps: WorkerDeps
  readonly #clocks: Clocks
  readonly #keeper: Keeper
  readonly #reporter: Reporter
  readonly #pacing: Pacing
  readonly #startId: string
  readonly #polling = new AbortController()
  readonly #hurry = new AbortController()
  /** Closed without what was still to be reported. */
  readonly #gone = new AbortController()
  readonly #running = new Map<Promise<void>, Run>()
  readonly #leftBehind: Promise<void>[] = []
  /** Leases whose end was not heard yet. */
  readonly #inHand = new Set<string>()
  readonly #slots = new Set<number>()
  readonly #loop: Promise<void>
  /** Names of polls that were not answered: what was leased in an answer that got lost is handed out again under its name. */
  readonly #lostPolls: Pick<LeaseCall, 'pollId' | 'max'>[] = []
  /** Calls that may bring work and are on their way; what they ask for, and what will have left by then. */
  readonly #asking = new Set<Promise<void>>()
  #asked = 0
  #leaving = 0
  #waitsForWork = false
  #left = () => {}

  constructor(options: LoopOptions, deps: WorkerDeps) {
    const { concurrency } = options
    if (!Number.isInteger(concurrency) || concurrency < 1)
      throw new RangeError('concurrency must be a whole number from 1')
    this.#options = options
    this.#deps = deps
    this.#clocks = deps.clocks ?? monotonicOnly(deps.world)
    this.#keeper = deps.keeper ?? new Heart(deps, { overrun: (lease) => deps.onTrouble(overrun(lease)) })
    this.#pacing = new Pacing(deps.world)
    this.#startId = deps.world.uuid()
    this.#reporter = new Reporter(deps, {
      next: (reporting) => this.#askNext(reporting),
      heard: (leaseId) => void this.#inHand.delete(leaseId),
    })
    this.#loop = this.#poll()
  }

  /** Takes no more work and waits for what is running; what still runs after `drainMs` is told to stop. */
  async close(drainMs: number): Promise<void> {
    const { world } = this.#deps
    const { leaveAfterMs } = this.#options
    this.#polling.abort()
    const callOffs = [world.after(drainMs, () => this.hurry())]
    const left = new Promise<void>((resolve) => {
      if (leaveAfterMs === undefined) return
      const leave = () => resolve(this.#leave())
      callOffs.push(world.after(drainMs + leaveAfterMs, leave))
    })
    await Promise.race([this.#ended(), left])
    for (const callOff of callOffs) callOff()
  }

  /** What `close` did not wait for: each settles when its run has ended after all, which nobody is told. */
  get leftBehind(): readonly Promise<void>[] {
    return this.#leftBehind
  }

  /** Tells everything that runs to stop. */
  hurry(): void {
    this.#polling.abort()
    this.#hurry.abort()
    for (const { controller } of this.#running.values()) controller.abort(stopping())
  }

  async #ended(): Promise<void> {
    await this.#loop
    while (this.#running.size > 0) await Promise.all(this.#running.keys())
  }

  /**
   * Leases of runs that go on are neither kept nor given back: they lapse, and nobody else has those jobs before. So do those
   * of runs whose end nobody has heard yet.
   */
  #leave(): void {
    for (const [ended, run] of this.#running) {
      this.#running.delete(ended)
      run.letGo()
      this.#deps.onTrouble(run.atWork ? leftBehind(run.lease) : unreported(run.lease))
      if (run.atWork) this.#leftBehind.push(ended)
      run.atWork = false
    }
    this.#gone.abort()
    this.#left()
  }

  /** A promise of its own for each who waits: one for all would remember them for ever. */
  #whenLeft(): Promise<void> {
    return new Promise((resolve) => {
      this.#left = resolve
    })
  }

  async #poll(): Promise<void> {
    const { signal } = this.#polling
    while (!signal.aborted) {
      if (this.#asking.size > 0) {
        await Promise.race(this.#asking)
        continue
      }
      const call = this.#call(this.#options.concurrency - this.#inHand.size, this.#pacing.waitMs)
      if (call === null) await Promise.race([...this.#running.keys(), this.#whenLeft()])
      else {
        this.#waitsForWork = true
        const pauseMs = await this.#ask(call, signal)
        this.#waitsForWork = false
        if (pauseMs > 0) await sleep(this.#deps.world, pauseMs, signal)
      }
    }
  }

  /** What to lease along with so many reports. Not while a poll waits: it has asked for all that there is room for. */
  #askNext(reporting: number): NextCall | null {
    const room = this.#options.concurrency - this.#inHand.size + this.#leaving + reporting - this.#asked
    if (this.#waitsForWork || this.#polling.signal.aborted) return null
    const call = this.#call(room, 0)
    if (call === null) return null
    let answered = () => {}
    const asking = new Promise<void>((resolve) => {
      answered = resolve
    })
    this.#asking.add(asking)
    this.#asked += call.max
    this.#leaving += reporting
    return {
      call,
      settled: (answer) => {
        this.#asked -= call.max
        this.#leaving -= reporting
        if (answer === null) this.#lostPolls.push(call)
        else this.#take(answer.leases, answer.sent)
        this.#asking.delete(asking)
        answered()
      },
    }
  }

  /** Answers with how long to wait before the next time. */
  async #ask(call: LeaseCall, signal: AbortSignal): Promise<number> {
    const sent = this.#clocks()
    try {
      const leases = await this.#deps.transport.lease(call, signal)
      this.#take(leases, sent)
      return this.#paced(call, this.#pacing.answered(elapsedMs(sent, this.#clocks()), leases.length))
    } catch (error) {
      if (signal.aborted) return this.#collect(call)
      this.#lostPolls.push(call)
      this.#deps.onTrouble(error)
      const cut = error instanceof IchidoError && error.details.cut === true
      return this.#paced(call, askedMsOf(error) + this.#pacing.failed(elapsedMs(sent, this.#clocks()), cut))
    }
  }

  /** Whoever wonders why work begins late is told. */
  #paced(call: LeaseCall, pauseMs: number): number {
    if (call.waitMs > 0 && this.#pacing.waitMs === 0) this.#deps.onTrouble(new Error(GIVEN_UP))
    return pauseMs
  }

  /** What may have been leased by a poll that was called off before its answer came; it is given back. */
  async #collect(call: LeaseCall): Promise<0> {
    const sent = this.#clocks()
    try {
      this.#take(await this.#deps.transport.lease({ ...call, waitMs: 0 }), sent)
    } catch (error) {
      this.#deps.onTrouble(error)
    }
    return 0
  }

  /**
   * Null: not now. A lost one is asked again as it was, for it may bring all that it asked for. Until that has room nothing
   * new takes it away: what was leased with it would wait for nobody, and cost a retry.
   */
  #call(room: number, waitMs: number): LeaseCall | null {
    const { queues, kinds, startAtOnce } = this.#options
    const lost = this.#lostPolls.findIndex(({ max }) => max <= room)
    if (room < 1 || (lost === -1 && this.#lostPolls.length > 0)) return null
    const [again] = lost === -1 ? [] : this.#lostPolls.splice(lost, 1)
    const { max, pollId } = again ?? { max: Math.min(room, LEASES_MAX), pollId: this.#deps.world.uuid() }
    const call = { queues, kinds, max, waitMs, pollId }
    return startAtOnce ? { ...call, startId: this.#startId } : call
  }

  #take(leases: LeaseShape[], sent: Mark): void {
    for (const lease of leases) this.#begin(lease, sent)
  }

  #begin(lease: LeaseShape, sent: Mark): void {
    const controller = new AbortController()
    // It was leased while the worker was told to stop: given back, not begun.
    if (this.#polling.signal.aborted) controller.abort(stopping())
    const run: Run = { lease, controller, atWork: false, letGo() {}, patience: null }
    const ended = this.#run(run, sent)
      .catch(this.#deps.onTrouble)
      .finally(() => {
        this.#inHand.delete(lease.lease_id)
        this.#running.delete(ended)
      })
    this.#inHand.add(lease.lease_id)
    this.#running.set(ended, run)
  }

  async #run(run: Run, sent: Mark): Promise<void> {
    const { lease, controller } = run
    const { signal } = controller
    const now = this.#clocks()
    const isFresh = this.#options.startAtOnce && elapsedMs(sent, now) < Math.min(FRESH_MS, aloneMsOf(lease) / 2)
    const hold = this.#keeper.hold(lease, isFresh ? sent : now, controller)
    run.letGo = () => hold.letGo()
    try {
      if (!isFresh && !signal.aborted && !(await this.#confirm(lease, hold, signal))) return
      const callOff = this.#limitTime(lease, controller)
      run.letGo = () => {
        callOff()
        run.patience?.end()
        hold.letGo()
      }
      run.atWork = true
      const ended = () => {
        callOff()
        hold.runEnded()
      }
      const outcome = signal.aborted ? 'released' : await this.#work({ lease, signal, hold, ended })
      // Left behind.
      if (!run.atWork) return
      run.atWork = false
      ended()
      if (!hold.isLost) await this.#report(run, outcome, hold)
      else await this.#deps.outbox?.drop(lease)
    } finally {
      run.letGo()
    }
  }

  async #work(run: Omit<RunInHand, 'slot'>): Promise<Outcome> {
    let slot = 0
    while (this.#slots.has(slot)) slot++
    this.#slots.add(slot)
    try {
      return await this.#options.work({ ...run, slot })
    } finally {
      // Before the report, whose answer may bring the run that takes the place of this one.
      this.#slots.delete(slot)
    }
  }

  /** False: the run is not ours to begin. */
  async #confirm(lease: LeaseShape, hold: Hold, signal: AbortSignal): Promise<boolean> {
    const { transport } = this.#deps
    return this.#insist(signal, async () => {
      if (this.#options.startAtOnce) return hold.ask()
      const startSent = this.#clocks()
      const { repeated } = await transport.start(lease.lease_id, this.#startId)
      // Its first answer got lost, perhaps so long ago that the control plane has begun to wait for this worker.
      if (repeated) return hold.ask()
      hold.confirm(startSent)
      return true
    })
  }

  /** Tries for as long as the run may still be begun. */
  async #insist(signal: AbortSignal, ask: () => Promise<boolean>): Promise<boolean> {
    for (let failures = 0; ; failures++) {
      try {
        return await ask()
      } catch (error) {
        this.#deps.onTrouble(error)
        if (!isPassing(error)) return false
        await sleep(this.#deps.world, this.#retryMs(failures, error), signal)
        if (signal.aborted) return false
      }
    }
  }

  #limitTime({ timeout_seconds: seconds }: LeaseShape, controller: AbortController): () => void {
    if (seconds === null) return () => {}
    const expire = () => controller.abort(new Stopped('TIMEOUT', `The run took longer than ${seconds} s`))
    return this.#deps.world.after(seconds * 1000, expire)
  }

  /** Tried for as long as it can be heard; a result that is refused is what the run then fails with. */
  async #report(run: Run, outcome: Outcome, hold: Hold): Promise<void> {
    const { lease } = run
    const { transport, outbox } = this.#deps
    const leaseId = lease.lease_id
    let report: RunReport | null = outcome === 'released' ? null : { leaseId, ...outcome }
    if (report !== null && outbox?.eager) await outbox.keep(lease, report)
    for (let failures = 0; ; failures++) {
      try {
        await (report === null ? transport.release(leaseId) : this.#reporter.send(report))
        break
      } catch (error) {
        if (this.#gone.signal.aborted) return
        if (isPassing(error)) {
          if (failures === 0 && report !== null && outbox?.eager === false) await outbox.keep(lease, report)
          run.patience ??= this.#patience(lease, hold.lost)
          if (run.patience.over.aborted) throw error
          this.#deps.onTrouble(error)
          await sleep(this.#deps.world, this.#retryMs(failures, error), run.patience.over)
          if (this.#gone.signal.aborted) return
        } else if (report !== null && 'result' in report) {
          report = { leaseId, failure: refused(error) }
        } else {
          this.#deps.onTrouble(error)
          break
        }
      }
    }
    if (outbox?.eager || run.patience !== null) await outbox?.drop(lease)
  }

  /** Until nobody can be waiting for the report any more; one on disk waits for the next start of the process. */
  #patience({ lease_ttl_seconds, continuation_seconds }: LeaseShape, lost: AbortSignal): Patience {
    if (this.#deps.outbox !== undefined) return { over: AbortSignal.any([lost, this.#hurry.signal]), end() {} }
    const late = new AbortController()
    const end = this.#deps.world.after((lease_ttl_seconds + continuation_seconds) * 1000, () => late.abort())
    return { over: AbortSignal.any([lost, late.signal, this.#gone.signal]), end }
  }

  #retryMs(failures: number, error: unknown): number {
    const ms = Math.min(RETRY_MAX_MS, RETRY_FIRST_MS * 2 ** Math.min(failures, 10))
    return askedMsOf(error) + ms * (0.5 + this.#deps.world.random() / 2)
  }
}

/** A token that is not known now may be again after it was renewed. */
export function isPassing(error: unknown): boolean {
  return error instanceof IchidoError && (error.retryable || error.code === 'UNAUTHENTICATED')
}

export function refused(error: unknown): FailReport {
  return failure(error, error instanceof IchidoError ? error.code : 'RESULT_REFUSED', false)
}

function stopping(): Stopped {
  return new Stopped('STOPPED', 'The worker is stopping')
}
