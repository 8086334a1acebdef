import { checkKind, checkValue, type Kind, requireJson } from '../client/kind.ts'
import { isFatal, toFailure } from './loop/failure.ts'
import { HandlerLog } from './loop/handler-log.ts'
import { ABORT_GRACE_MS } from './loop/heart.ts'
import { type Outcome, type RunInHand, WorkerLoop } from './loop/loop.ts'
import { COST_RULE, isCost, type WorkerDeps } from './loop/ports.ts'
import { type Progress, Publisher, type PublisherDeps } from './loop/progress.ts'

/** The argument of a handler. Pass `job` to the systems that you call, because it identifies the attempt. */
export interface HandlerContext<Payload> {
  /** The payload, after its schema has transformed it. */
  payload: Payload
  /** Aborts when the job is canceled, its time is up, its lease is lost, or the worker must stop. */
  signal: AbortSignal
  /** Publishes an event of the job. */
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
  /** The job and the attempt. */
  job: { id: string; attempt: number; leaseId: string; traceparent: string | null }
}

/** Runs one attempt of a job; the return value is the result. */
export type Handler<Payload, Result> = (context: HandlerContext<Payload>) => Promise<Result> | Result

/** The options of `handle`. */
export interface HandleOptions {
  /** How many runs this process executes at a time; default 1. */
  concurrency?: number
}

/** Runs the jobs of one kind until it is closed. */
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

/** Runs a handler once, and returns the outcome. */
export async function handleRun<Payload, Result>(
  { options }: Pick<Kind<unknown, Payload, unknown, Result>, 'options'>,
  handler: Handler<Payload, Result>,
  run: RunInHand,
  deps: PublisherDeps,
): Promise<Outcome> {
  const { lease } = run
  const publisher = new Publisher(run, deps)
  const handlerLog = new HandlerLog(lease, deps)
  let cost: number | undefined
  try {
    const context = {
      [RUN]: run,
      payload: (await checkValue(options.payload, lease.payload, 'payload')) as Payload,
      progress: publisher.progress,
      log: handlerLog.log,
      lastProgress: lease.last_progress,
      cost(amount: number) {
        if (!isCost(amount)) throw new RangeError(`cost must be ${COST_RULE}`)
        cost = amount
      },
      job: { id: lease.job_id, attempt: lease.attempt, leaseId: lease.lease_id, traceparent: lease.traceparent },
    }
    const result = await handler(
      Object.defineProperty(context, 'signal', SIGNAL) as typeof context & { signal: AbortSignal },
    )
    // A value that is returned after the time limit may be incomplete.
    if (run.reason && ['TIMEOUT', 'CONTINUATION_LOST'].includes(run.reason.code)) throw run.reason
    // Checked, but sent as returned: the reader of the result applies the schema's transformations.
    await checkValue(options.result, result, 'result')
    requireJson(result, 'result')
    return { result: { result: result ?? null, cost } }
  } catch (error) {
    const released = !isFatal(error) && run.reason?.code === 'STOPPED'
    return released ? 'released' : { failure: toFailure(error, run.reason) }
  } finally {
    run.ended()
    const logged = handlerLog.flush(run)
    await publisher.flush(run)
    await logged
  }
}

const RUN = Symbol()

/** The signal is made on first use. Its getter is one function for all runs: an object with a getter of its own takes 3 KB. */
const SIGNAL = {
  enumerable: true,
  get(this: { [RUN]: RunInHand }) {
    return this[RUN].signal
  },
}
