import { requireJson } from '../client/json-value.ts'
import { checkKind, checkValue, type Kind } from '../client/kind.ts'
import type { LeaseShape } from '../protocol/index.ts'
import type { WorkerDeps } from './deps.ts'
import { COST_RULE, isCost } from './loop/cost.ts'
import { isFatal, Stopped, toFailure } from './loop/failure.ts'
import { HandlerLog } from './loop/handler-log.ts'
import { ABORT_GRACE_MS } from './loop/held-lease.ts'
import { type Outcome, type RunInHand, WorkerLoop } from './loop/loop.ts'
import { type Progress, Publisher, type PublisherDeps } from './loop/progress.ts'

/** The argument of a handler. `job` identifies the attempt: pass it to the systems that you call. */
export interface HandlerContext<Payload> {
  payload: Payload
  /** Aborts when the job is canceled, its time is up, its lease is lost, or the worker must stop. */
  signal: AbortSignal
  progress: Progress
  /**
   * Adds a line to the log of this run (`GET /v1/jobs/{id}/logs`, `ichido jobs logs`). It never throws, and you need not await
   * it. Lines are sent in order, several at once, and before the outcome. A run keeps up to 8 MiB.
   */
  log(line: string): void
  /** The last progress of earlier attempts, to continue where they stopped; null if there is none. */
  lastProgress: unknown
  /**
   * Sets the cost of this run, in the unit of the cost limits; the last call counts. If the run succeeds, this cost replaces the
   * job's estimate. Throws a RangeError unless the amount is a number from 0 to 1,000,000,000.
   */
  cost(amount: number): void
  job: { id: string; attempt: number; leaseId: string; traceparent: string | null }
}

export type Handler<Payload, Result> = (context: HandlerContext<Payload>) => Promise<Result> | Result

export interface HandleOptions {
  /** How many runs this process executes at a time; default 1. */
  concurrency?: number
}

/** One kind's handler, at work until it is closed. */
export class HandlerLoop<Payload, Result> extends WorkerLoop {
  constructor(
    kind: Kind<unknown, Payload, unknown, Result>,
    handler: Handler<Payload, Result>,
    { concurrency = 1 }: HandleOptions,
    deps: WorkerDeps,
  ) {
    checkKind(kind)
    if (typeof handler !== 'function') throw new TypeError(`The handler of ${kind.name} must be a function`)
    const work = (run: RunInHand) => handleRun(kind, handler, run, deps)
    const only = { queues: [kind.queue], kinds: [kind.name] }
    super({ ...only, concurrency, startAtOnce: true, leaveAfterMs: ABORT_GRACE_MS, work }, deps)
  }
}

/** One run of a handler, and what it comes to. */
export async function handleRun<Payload, Result>(
  { options }: Pick<Kind<unknown, Payload, unknown, Result>, 'options'>,
  handler: Handler<Payload, Result>,
  run: RunInHand,
  deps: PublisherDeps,
): Promise<Outcome> {
  const { lease, signal } = run
  const publisher = new Publisher(run, deps)
  const handlerLog = new HandlerLog(lease, deps)
  let said: { cost?: number } = {}
  try {
    const payload = await checkValue(options.payload, lease.payload, 'payload')
    const result = await handler({
      payload: payload as Payload,
      signal,
      progress: publisher.progress,
      log: handlerLog.log,
      lastProgress: lease.last_progress,
      cost(amount) {
        if (!isCost(amount)) throw new RangeError(`cost must be ${COST_RULE}`)
        said = { cost: amount }
      },
      job: jobOf(lease),
    })
    const stopped: unknown = signal.reason
    // What a handler still returns after its time was up may be half done.
    if (stopped instanceof Stopped && ['TIMEOUT', 'CONTINUATION_LOST'].includes(stopped.code)) throw stopped
    // Checked, and sent as it was returned: whoever reads the result applies the schema's transformations.
    await checkValue(options.result, result, 'result')
    requireJson(result, 'result')
    return { result: { result: result ?? null, ...said } }
  } catch (error) {
    const gaveWay = !isFatal(error) && signal.reason instanceof Stopped && signal.reason.code === 'STOPPED'
    return gaveWay ? 'released' : { failure: toFailure(error, signal) }
  } finally {
    run.ended()
    const logged = handlerLog.flush(run)
    await publisher.flush(run)
    if (logged !== null) await logged
  }
}

function jobOf(lease: LeaseShape): HandlerContext<unknown>['job'] {
  return { id: lease.job_id, attempt: lease.attempt, leaseId: lease.lease_id, traceparent: lease.traceparent }
}
