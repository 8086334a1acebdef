import { IchidoError, type JobDetail, type JobState } from '../protocol/index.ts'
import { withoutResult, worded } from './errors.ts'
import { checkPayload, checkValue, type Kind } from './kind.ts'
import type { Accepted, JobEvent, Transport, WatchOptions } from './transport.ts'

/** Long enough to be cheap, short enough for proxies that cut idle connections. */
const WAIT_MS = 20_000

/** A handle for a submitted job. */
export class Job<Result = unknown> {
  /** The id of the job. */
  readonly id: string
  /** True if the key had already made this job, also by a try whose answer got lost. */
  readonly replayed: boolean
  /** Warnings that the quota or the cost limit is nearly reached. */
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

  /** Makes the handle for an accepted submission. */
  static accepted<Result>(transport: Transport, { response, replayed }: Accepted, kind?: Kind): Job<Result> {
    const { job_id: id, quota_warnings: quota, cost_limit_warning: cost } = response
    return new Job<Result>(transport, id, { replayed, warnings: cost === null ? quota : [...quota, cost], kind })
  }

  /** Reads the job with its runs. */
  get({ signal }: { signal?: AbortSignal } = {}): Promise<JobDetail> {
    return this.#transport.get(this.id, signal)
  }

  /** Reads the state of the job. */
  async state(): Promise<JobState> {
    return (await this.get()).state
  }

  /** Cancels the job; a running job is asked to stop. */
  cancel({ signal }: { signal?: AbortSignal } = {}): Promise<JobDetail> {
    return this.#transport.cancel(this.id, signal)
  }

  /**
   * Gives a job that ended without success another run and a full retry budget. With `payload`, it submits a new job in its
   * place, under `key`. Resolves to the job that continues. Without a payload, the call is sent only once: after a
   * `Transient`, check the job before you call again.
   */
  async retry(options: { payload?: unknown; key?: string; signal?: AbortSignal } = {}): Promise<Job<Result>> {
    if ('payload' in options) await checkPayload(this.#kind, options.payload)
    const { job, replayed } = await worded(this.#transport.retry(this.id, options))
    return new Job<Result>(this.#transport, job.job_id, { replayed, kind: this.#kind })
  }

  /** Waits until the job has ended. Rejects with `JobFailed` or `JobCanceled` if the job ends without a result. */
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

  /** Yields every event once, in order, from the beginning or after a given event, until the job has ended. */
  watch(options: WatchOptions = {}): AsyncGenerator<JobEvent> {
    return this.#transport.watch(this.id, options)
  }
}
