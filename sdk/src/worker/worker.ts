import { checkValue, InvalidValue, type Kind } from '../client/kind.ts'
import { IchidoError, type LeaseShape } from '../protocol/index.ts'
import { sleep, type World } from '../world.ts'
import type { FailReport, WorkerTransport } from './transport.ts'

/** Thrown by a handler: trying again would not help. */
export class Fatal extends Error {
  override readonly name = 'Fatal'
  readonly code: string

  constructor(code: string, message: string = code) {
    super(message)
    this.code = code
  }
}

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

export interface WorkerDeps {
  transport: WorkerTransport
  world: World
  onTrouble(error: unknown): void
}

const POLL_WAIT_MS = 20_000
const RETRY_POLL_MS = 1_000
const PROGRESS_STAGE = 'progress'

/** One kind's handler: leases as many runs as it has room for, keeps their leases alive, and reports how they end. */
export class HandlerLoop<Payload, Result> {
  readonly #kind: Kind<never, Payload, Result>
  readonly #handler: Handler<Payload, Result>
  readonly #concurrency: number
  readonly #deps: WorkerDeps
  readonly #startId: string
  readonly #polling = new AbortController()
  readonly #running = new Map<Promise<void>, AbortController>()
  readonly #loop: Promise<void>

  constructor(
    kind: Kind<never, Payload, Result>,
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
    const hurry = new AbortController()
    const late = sleep(this.#deps.world, drainMs, hurry.signal).then(() => {
      for (const controller of this.#running.values()) controller.abort(new Stopped('The worker is stopping'))
    })
    await this.#loop
    await Promise.all(this.#running.keys())
    hurry.abort()
    await late
  }

  async #poll(): Promise<void> {
    const { world, transport, onTrouble } = this.#deps
    const { signal } = this.#polling
    while (!signal.aborted) {
      const room = this.#concurrency - this.#running.size
      if (room === 0) {
        await Promise.race(this.#running.keys())
        continue
      }
      try {
        const call = { queue: this.#kind.queue, kinds: [this.#kind.name], max: room, waitMs: POLL_WAIT_MS }
        const leases = await transport.lease({ ...call, pollId: world.uuid(), startId: this.#startId }, signal)
        for (const lease of leases) this.#begin(lease)
      } catch (error) {
        onTrouble(error)
        await sleep(world, RETRY_POLL_MS, signal)
      }
    }
  }

  #begin(lease: LeaseShape): void {
    const controller = new AbortController()
    const run = this.#work(lease, controller)
      .catch(this.#deps.onTrouble)
      .finally(() => this.#running.delete(run))
    this.#running.set(run, controller)
  }

  async #work(lease: LeaseShape, controller: AbortController): Promise<void> {
    const stopBeating = this.#keepAlive(lease, controller)
    const callOff = this.#limitTime(lease, controller)
    let outcome: { result: Result } | { failure: FailReport }
    try {
      outcome = { result: await this.#handle(lease, controller.signal) }
    } catch (error) {
      outcome = { failure: toFailure(error, controller.signal) }
    }
    callOff()
    try {
      if ('result' in outcome) await this.#deps.transport.finish(lease.lease_id, { result: outcome.result ?? null })
      else await this.#deps.transport.fail(lease.lease_id, outcome.failure)
    } finally {
      stopBeating()
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
    return (await checkValue(options.result, result, 'result')) as Result
  }

  /** A third of the lease time between heartbeats: two may get lost before the lease does. */
  #keepAlive(lease: LeaseShape, controller: AbortController): () => void {
    const { world, transport, onTrouble } = this.#deps
    const intervalMs = (lease.lease_ttl_seconds * 1000) / 3
    let callOff: () => void = () => {}
    const beat = async () => {
      try {
        const { held, cancelRequested } = await transport.heartbeat(lease.lease_id)
        if (!held) controller.abort(new Stopped('The lease is lost'))
        else if (cancelRequested) controller.abort(new Stopped('The job was canceled'))
      } catch (error) {
        onTrouble(error)
      }
      if (!stopped) callOff = world.after(intervalMs, beat)
    }
    let stopped = false
    callOff = world.after(intervalMs, beat)
    return () => {
      stopped = true
      callOff()
    }
  }

  #limitTime(lease: LeaseShape, controller: AbortController): () => void {
    const seconds = lease.timeout_seconds
    if (seconds === null) return () => {}
    const expire = () => controller.abort(new Stopped(`The run took longer than ${seconds} s`, 'TIMEOUT'))
    return this.#deps.world.after(seconds * 1000, expire)
  }
}

/** Why a handler's signal aborted; also what is reported when the handler gives up because of it. */
export class Stopped extends Error {
  override readonly name = 'Stopped'
  readonly code: string

  constructor(message: string, code = 'STOPPED') {
    super(message)
    this.code = code
  }
}

function toFailure(error: unknown, signal: AbortSignal): FailReport {
  if (signal.aborted && signal.reason instanceof Stopped) {
    return { code: signal.reason.code, message: signal.reason.message, retryable: true }
  }
  if (error instanceof Fatal) return withTrace(error, error.code, false)
  // A value that does not fit its schema will not fit it next time either.
  if (error instanceof InvalidValue) return withTrace(error, 'INVALID_VALUE', false)
  if (error instanceof IchidoError) return withTrace(error, error.code, true)
  return error instanceof Error
    ? withTrace(error, error.name, true)
    : { code: 'ERROR', message: String(error), retryable: true }
}

function withTrace(error: Error, code: string, retryable: boolean): FailReport {
  const report = { code, message: error.message || code, retryable }
  return error.stack === undefined ? report : { ...report, traceback: error.stack }
}
