import { askedMsOf } from '../../client/retry.ts'
import { IchidoError, type LeaseShape } from '../../protocol/index.ts'
import { type Clocks, elapsedMs, type Mark, monotonicOnly, sleep } from '../../world.ts'
import { isPassing, leftBehind, overrun, refused, stopping, unreported } from './failure.ts'
import { aloneMsOf, Heart, limitTime, nothing } from './heart.ts'
import { GIVEN_UP, Pacing } from './pacing.ts'
import type { FailReport, FinishReport, Hold, Keeper, LeaseCall, RunReport, WorkerDeps } from './ports.ts'
import { type NextCall, Reporter } from './reporter.ts'
import { RunStop, type Stopped } from './run-stop.ts'

/** A run, as the loop gives it to `work`. */
export interface RunInHand {
  lease: LeaseShape
  /** Aborts with a `Stopped` when the job is canceled, its time is up, its lease is lost, or the worker must stop. */
  readonly signal: AbortSignal
  /** The reason of the signal; undefined until it aborts. */
  readonly reason: Stopped | undefined
  hold: Hold
  /** A number from 0, below `concurrency`, that no other run has at the same time. */
  slot: number
  /** Call it when the work has ended; the lease is then kept until the last output is sent. */
  ended(): void
}

/** `released`: the run ended because the worker stops; this costs no retry. */
export type Outcome = { result: FinishReport } | { failure: FailReport } | 'released'

export interface LoopOptions {
  queues: readonly string[]
  kinds: readonly string[]
  concurrency: number
  /** True: runs start in the call that leases them. False: by a separate call right before the work. */
  startAtOnce: boolean
  /** How long `close` waits for a stopped run and its report; default: without limit. */
  leaveAfterMs?: number
  /** Never throws. */
  work(run: RunInHand): Promise<Outcome>
}

class Run extends RunStop implements RunInHand {
  readonly lease: LeaseShape
  hold!: Hold
  slot = 0
  /** False after it has ended or was left behind. */
  atWork = false
  /** Created when its report must be retried; most reports succeed at once. */
  patience: Patience | null = null
  /** Calls off its time limit. */
  callOff = nothing

  constructor(lease: LeaseShape) {
    super()
    this.lease = lease
  }

  ended(): void {
    this.callOff()
    this.hold.runEnded()
  }

  /** Stops its heartbeats and timers. */
  letGo(): void {
    this.callOff()
    this.patience?.end()
    this.hold?.letGo()
  }
}

interface Patience {
  over: AbortSignal
  end(): void
}

/** A lease whose answer took longer is confirmed by a heartbeat before the work begins. */
const FRESH_MS = 1_000
const LEASES_MAX = 1_000
const RETRY_FIRST_MS = 250
const RETRY_MAX_MS = 30_000

/** Leases as many runs as there is room for, keeps their leases alive, and reports their outcomes. */
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
  /** Aborts when `close` gives up on undelivered reports. */
  readonly #gone = new AbortController()
  /** Each run, and a promise that settles when the run and its report have ended. */
  readonly #running = new Map<Run, Promise<void>>()
  readonly #leftBehind: Promise<void>[] = []
  /** Leases whose end was not acknowledged yet. */
  readonly #inHand = new Set<string>()
  /** The free slots. The last one is taken next, so a worker with one run at a time stays in its slot. */
  readonly #slots: number[]
  readonly #loop: Promise<void>
  /** Polls without an answer. A repeated poll with the same id gets the leases of the lost answer. */
  readonly #lostPolls: Pick<LeaseCall, 'pollId' | 'max'>[] = []
  /** Calls under way that may bring leases, how many they asked for, and how many runs they report. */
  readonly #asking = new Set<Promise<void>>()
  #asked = 0
  #leaving = 0
  #waitsForWork = false
  #roomMade = () => {}

  constructor(options: LoopOptions, deps: WorkerDeps) {
    const { concurrency } = options
    if (!Number.isInteger(concurrency) || concurrency < 1)
      throw new RangeError('concurrency must be a whole number from 1')
    this.#options = options
    this.#slots = [...Array(concurrency).keys()].reverse()
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

  /** Takes no more work and waits for the runs; those that continue after `drainMs` are told to stop. */
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

  /** The runs that `close` did not wait for; each settles when the run ends, which is not reported. */
  get leftBehind(): readonly Promise<void>[] {
    return this.#leftBehind
  }

  /** Tells every run to stop. */
  hurry(): void {
    this.#polling.abort()
    this.#hurry.abort()
    for (const run of this.#running.keys()) run.abort(stopping())
  }

  async #ended(): Promise<void> {
    await this.#loop
    while (this.#running.size > 0) await Promise.all(this.#running.values())
  }

  /** The leases are neither kept nor released: they expire, and no other worker gets the jobs before. */
  #leave(): void {
    for (const [run, ended] of this.#running) {
      this.#running.delete(run)
      run.letGo()
      this.#deps.onTrouble(run.atWork ? leftBehind(run.lease) : unreported(run.lease))
      if (run.atWork) this.#leftBehind.push(ended)
      run.atWork = false
    }
    this.#gone.abort()
    this.#roomMade()
  }

  async #poll(): Promise<void> {
    const { signal } = this.#polling
    while (!signal.aborted) {
      if (this.#asking.size > 0) {
        await Promise.race(this.#asking)
        continue
      }
      const call = this.#call(this.#options.concurrency - this.#inHand.size, this.#pacing.waitMs)
      if (call === null) {
        // Until a run has ended, or all were left behind.
        await new Promise<void>((resolve) => {
          this.#roomMade = resolve
        })
      } else {
        this.#waitsForWork = true
        const pauseMs = await this.#ask(call, signal)
        this.#waitsForWork = false
        if (pauseMs > 0) await sleep(this.#deps.world, pauseMs, signal)
      }
    }
  }

  /** Leases runs together with reports; not while a poll waits, because that asked for all the room. */
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

  /** Returns the pause before the next poll. */
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

  /** Reports that long polls were given up, which delays work. */
  #paced(call: LeaseCall, pauseMs: number): number {
    if (call.waitMs > 0 && this.#pacing.waitMs === 0) this.#deps.onTrouble(new Error(GIVEN_UP))
    return pauseMs
  }

  /** Repeats an aborted poll, so that the runs it may have leased are released. */
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
   * Null: not now. A lost poll is repeated unchanged, because it may bring all the runs that it asked for. No new poll starts
   * before there is room for that: the runs of the lost answer would wait for their timeout, and cost a retry.
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
    const run = new Run(lease)
    // A run that was leased during the stop is released.
    if (this.#polling.signal.aborted) run.abort(stopping())
    this.#inHand.add(lease.lease_id)
    this.#running.set(run, this.#run(run, sent))
  }

  /** Never rejects. */
  async #run(run: Run, sent: Mark): Promise<void> {
    const { lease } = run
    try {
      const now = this.#clocks()
      const isFresh = this.#options.startAtOnce && elapsedMs(sent, now) < Math.min(FRESH_MS, aloneMsOf(lease) / 2)
      run.hold = this.#keeper.hold(lease, isFresh ? sent : now, run)
      if (!isFresh && !run.aborted && !(await this.#confirm(run))) return
      run.callOff = limitTime(this.#deps.world, lease, run)
      run.atWork = true
      const outcome = run.aborted ? 'released' : await this.#work(run)
      if (!run.atWork) return
      run.atWork = false
      run.ended()
      if (!run.hold.isLost) await this.#report(run, outcome)
      else await this.#deps.outbox?.drop(lease)
    } catch (error) {
      this.#deps.onTrouble(error)
    } finally {
      run.letGo()
      this.#inHand.delete(lease.lease_id)
      this.#running.delete(run)
      this.#roomMade()
    }
  }

  async #work(run: Run): Promise<Outcome> {
    // There is one: polls never ask for more runs than there is room for.
    run.slot = this.#slots.pop() ?? 0
    try {
      return await this.#options.work(run)
    } finally {
      // Freed before the report, whose answer may bring the next run.
      this.#slots.push(run.slot)
    }
  }

  /** False: this worker must not begin the run. */
  async #confirm({ lease, hold, signal }: Run): Promise<boolean> {
    const { transport } = this.#deps
    return this.#insist(signal, async () => {
      if (this.#options.startAtOnce) return hold.ask()
      const startSent = this.#clocks()
      const { repeated } = await transport.start(lease.lease_id, this.#startId)
      // The first answer got lost, perhaps so long ago that the lease has expired.
      if (repeated) return hold.ask()
      hold.confirm(startSent)
      return true
    })
  }

  /** Retries until the run must not begin any more. */
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

  /** Retries while the report can be accepted. If the result is refused, the run fails with the refusal. */
  async #report(run: Run, outcome: Outcome): Promise<void> {
    const { lease, hold } = run
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

  /** How long a report is retried: until the lease cannot be valid; a stored report until the process stops. */
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
