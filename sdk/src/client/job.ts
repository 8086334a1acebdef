import { IchidoError, type JobDetail, type JobState } from '../protocol/index.ts'
import { checkValue, type Kind } from './kind.ts'
import type { JobEvent, Transport, WatchOptions } from './transport.ts'

/** Long enough that waiting costs next to nothing, short enough for proxies that cut idle connections. */
const WAIT_MS = 20_000

/** A submitted job, as its submitter holds it. */
export class Job<Result = unknown> {
  readonly id: string
  /** True when the key had been used before and this is the job it named. */
  readonly replayed: boolean
  readonly #transport: Transport
  readonly #kind: Kind | undefined

  constructor(transport: Transport, id: string, replayed: boolean, kind?: Kind) {
    this.#transport = transport
    this.id = id
    this.replayed = replayed
    this.#kind = kind
  }

  get(): Promise<JobDetail> {
    return this.#transport.get(this.id)
  }

  async state(): Promise<JobState> {
    return (await this.get()).state
  }

  cancel(): Promise<JobDetail> {
    return this.#transport.cancel(this.id)
  }

  /** Waits for the end. Rejects with JOB_FAILED when the job ends without a result. */
  async result({ signal }: { signal?: AbortSignal } = {}): Promise<Result> {
    for (;;) {
      signal?.throwIfAborted()
      try {
        const { result } = await this.#transport.result(this.id, WAIT_MS, signal)
        return (await checkValue(this.#kind?.options.result, result, 'result')) as Result
      } catch (error) {
        if (!(error instanceof IchidoError && error.code === 'RESULT_NOT_READY')) throw error
      }
    }
  }

  /** Every event once, in order, from the beginning or after the last one that was seen, until the job has ended. */
  watch(options: WatchOptions = {}): AsyncGenerator<JobEvent> {
    return this.#transport.watch(this.id, options)
  }
}
