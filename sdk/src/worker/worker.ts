import { checkValue, type Kind } from '../client/kind.ts'
import { IchidoError, type LeaseShape } from '../protocol/index.ts'
import { sleep } from '../world.ts'
import { failure, Stopped, toFailure } from './failure.ts'
import { holdLease } from './hold.ts'
import type { FailReport, WorkerDeps } from './transport.ts'

/** What a handler is given. `job` is for passing downstream: it tells one attempt from another. */
export interface HandlerContext<Payload> {
  payload: Payload
  /** Aborts when the job is canceled, its time is up, its lease is lost, or the worker must stop. */
  signal: AbortSignal
  progress(data: unknown): Promise<void>
  job: { id: string; attempt: number; leaseId: string; traceparent: string | null }
}

export type Handler<Payload, Result> = (context: HandlerContext<Payload>) => Promise<Result> | Result

export interface HandleOptions {
  /** How many runs this process works on at once; default 1. */
  concurrency?: number
}

const POLL_WAIT_MS = 20_000
/** Before a poll or a report is tried again. */
const RETRY_MS = 1_000
const PROGRESS_STAGE = 'progress'

type Outcome = { result: unknown } | { failure: FailReport }

/** One kind's handler: leases as many runs as it has room for, keeps their leases alive, and reports how they end. */
export class HandlerLoop<Payload, Result> {
  readonly #kind: Kind<unknown, Payload, unknown, Result>
  readonly #handler: Handler<Payload, Result>
  readonly #concurrency: number
  readonly #deps: WorkerDeps
  readonly #startId: string
  readonly #polling = new AbortController()
  readonly #running = new Map<Promise<void>, AbortController>()
  readonly #loop: Promise<void>
  #hurried = false

  constructor(
    kind: Kind<unknown, Payload, unknown, Result>,
    handler: Handler<Payload, Result>,
    { concurrency = 1 }: HandleOptions,
    deps: WorkerDeps,
  ) {
    if (!Number.isInteger(concurrency) || concurrency < 1)
      throw new RangeError('concurrency must be a whole number from 1')
    this.#kind = kind
    this.#handler = handler
    this.#concurrency = concurrency
    this.#deps = deps
    this.#startId = deps.world.uuid()
    this.#loop = this.#poll()
  }

  /** Takes no more work and waits for what is running; what still runs after `drainMs` is told to stop. */
  async close(drainMs: number): Promise<void> {
    this.#polling.abort()
    const callOff = this.#deps.world.after(drainMs, () => this.#hurry())
    await this.#loop
    await Promise.all(this.#running.keys())
    callOff()
  }

  #hurry(): void {
    this.#hurried = true
    for (const controller of this.#running.values()) controller.abort(stopping())
  }

  async #poll(): Promise<void> {
    const { world, transport, onTrouble } = this.#deps
    const { signal } = this.#polling
    // Kept until it is answered: what was leased in an answer that got lost is handed out again under the same name.
    let pollId = world.uuid()
    while (!signal.aborted) {
      const room = this.#concurrency - this.#running.size
      if (room === 0) {
        await Promise.race(this.#running.keys())
        continue
      }
      try {
        const call = { queue: this.#kind.queue, kinds: [this.#kind.name], max: room, waitMs: POLL_WAIT_MS }
        const leases = await transport.lease({ ...call, pollId, startId: this.#startId }, signal)
        pollId = world.uuid()
        for (const lease of leases) this.#begin(lease)
      } catch (error) {
        onTrouble(error)
        await sleep(world, RETRY_MS, signal)
      }
    }
  }

  #begin(lease: LeaseShape): void {
    const controller = new AbortController()
    if (this.#hurried) controller.abort(stopping())
    const run = this.#work(lease, controller)
      .catch(this.#deps.onTrouble)
      .finally(() => this.#running.delete(run))
    this.#running.set(run, controller)
  }

  async #work(lease: LeaseShape, controller: AbortController): Promise<void> {
    const hold = holdLease(lease, controller, this.#deps)
    const callOff = this.#limitTime(lease, controller)
    let outcome: Outcome
    try {
      outcome = { result: await this.#handle(lease, controller.signal) }
    } catch (error) {
      outcome = { failure: toFailure(error, controller.signal) }
    }
    callOff()
    try {
      await this.#report(lease.lease_id, outcome, hold.lost)
    } finally {
      hold.letGo()
    }
  }

  async #handle(lease: LeaseShape, signal: AbortSignal): Promise<Result> {
    const { options } = this.#kind
    const payload = await checkValue(options.payload, lease.payload, 'payload')
    let seq = 0
    const result = await this.#handler({
      payload: payload as Payload,
      signal,
      progress: (data) => this.#deps.transport.publish(lease.lease_id, PROGRESS_STAGE, ++seq, data),
      job: { id: lease.job_id, attempt: lease.attempt, leaseId: lease.lease_id, traceparent: lease.traceparent },
    })
    // What a handler still returns after its time was up may be half done.
    if (signal.reason instanceof Stopped && signal.reason.code === 'TIMEOUT') throw signal.reason
    // Checked, and sent as it was returned: whoever reads the result applies the schema's transformations.
    await checkValue(options.result, result, 'result')
    return result
  }

  #limitTime(lease: LeaseShape, controller: AbortController): () => void {
    const seconds = lease.timeout_seconds
    if (seconds === null) return () => {}
    const expire = () => controller.abort(new Stopped('TIMEOUT', `The run took longer than ${seconds} s`))
    return this.#deps.world.after(seconds * 1000, expire)
  }

  /** Tried for as long as the lease is held; a result that is refused is what the run then fails with. */
  async #report(leaseId: string, outcome: Outcome, lost: AbortSignal): Promise<void> {
    const { world, transport, onTrouble } = this.#deps
    for (let report = outcome; ; ) {
      try {
        if ('result' in report) return await transport.finish(leaseId, { result: report.result ?? null })
        return await transport.fail(leaseId, report.failure)
      } catch (error) {
        if (error instanceof IchidoError && error.retryable && !lost.aborted) {
          onTrouble(error)
          await sleep(world, RETRY_MS, lost)
        } else if ('result' in report) {
          report = { failure: failure(error, error instanceof IchidoError ? error.code : 'RESULT_REFUSED', false) }
        } else throw error
      }
    }
  }
}

function stopping(): Stopped {
  return new Stopped('STOPPED', 'The worker is stopping')
}
