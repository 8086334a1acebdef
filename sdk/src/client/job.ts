import { IchidoError, type JobDetail, type JobState } from '../protocol/index.ts'
import { withoutResult } from './errors.ts'
import { checkPayload, checkValue, type Kind } from './kind.ts'
import type { Accepted, JobEvent, Transport, WatchOptions } from './transport.ts'
import { worded } from './wording.ts'

/** Long enough that waiting costs next to nothing, short enough for proxies that cut idle connections. */
const WAIT_MS = 20_000

/** A submitted job, as its submitter holds it. */
export class Job<Result = unknown> {
  readonly id: string
  /** True when the key had been used before, also by a try whose answer got lost, and this is the job it named. */
  readonly replayed: boolean
  /** That the quota or the cost limit is nearly used up. */
  readonly warnings: readonly string[]
  readonly #transport: Transport
  readonly #kind: Kind | undefined

  constructor(
    transport: Transport,
    id: string,
    { replayed = false, warnings = [], kind }: { replayed?: boolean; warnings?: string[]; kind?: Kind | undefined },
  ) {
    this.#transport = transport
    this.id = id
    this.replayed = replayed
    this.warnings = warnings
    this.#kind = kind
  }

  static accepted<Result>(transport: Transport, { response, replayed }: Accepted, kind?: Kind): Job<Result> {
    const { job_id: id, quota_warnings: quota, cost_limit_warning: cost } = response
    return new Job<Result>(transport, id, { replayed, warnings: cost === null ? quota : [...quota, cost], kind })
  }

  get({ signal }: { signal?: AbortSignal } = {}): Promise<JobDetail> {
    return this.#transport.get(this.id, signal)
  }

  async state(): Promise<JobState> {
    return (await this.get()).state
  }

  cancel({ signal }: { signal?: AbortSignal } = {}): Promise<JobDetail> {
    return this.#transport.cancel(this.id, signal)
  }

  /**
   * For a job that ended without success: a next run of it, with a fresh retry budget; with `payload` a new job in its place,
   * submitted under `key`. Settles with the job that goes on. Without a payload it is asked for once: after `Transient`,
   * look at the job before asking again.
   */
  async retry(options: { payload?: unknown; key?: string; signal?: AbortSignal } = {}): Promise<Job<Result>> {
    if ('payload' in options) await checkPayload(this.#kind, options.payload)
    const { job, replayed } = await worded(this.#transport.retry(this.id, options))
    return new Job<Result>(this.#transport, job.job_id, { replayed, kind: this.#kind })
  }

  /** Waits for the end. Rejects with `JobFailed` or `JobCanceled` when the job ends without a result. */
  async result({ signal }: { signal?: AbortSignal } = {}): Promise<Result> {
    for (;;) {
      signal?.throwIfAborted()
      try {
        const { result } = await this.#transport.result(this.id, WAIT_MS, signal)
        return (await checkValue(this.#kind?.options.result, result, 'result')) as Result
      } catch (error) {
        if (!(error instanceof IchidoError)) throw error
        if (error.code === 'JOB_FAILED') throw withoutResult(this.id, error)
        if (error.code !== 'RESULT_NOT_READY') throw error
      }
    }
  }

  /** Every event once, in order, from the beginning or after the last one that was seen, until the job has ended. */
  watch(options: WatchOptions = {}): AsyncGenerator<JobEvent> {
    return this.#transport.watch(this.id, options)
  }
}
