import type { JobShape, Page, SubmitRequest } from '../protocol/index.ts'
import { Job } from './job.ts'
import { checkValue, defineKind, type Kind } from './kind.ts'
import type { JobEvent, JobListFilter, SubmitCall, Transport, WatchOptions } from './transport.ts'

export interface SubmitOptions {
  /** Names the submission: sent again under the same key, it is the same job. */
  key?: string
  /** A PostgreSQL client inside a transaction: the job exists exactly if that transaction commits. */
  tx?: unknown
  priority?: number
  runAt?: Date
  delaySeconds?: number
  labels?: Record<string, string>
  estimatedCost?: number
  reservationId?: string
  keyTtlHours?: number
  traceparent?: string
}

/** Submits jobs and follows them, over whatever transport. */
export class Client {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  async submit<PayloadIn, PayloadOut, Result, ResultIn>(
    kind: Kind<PayloadIn, PayloadOut, Result, ResultIn> | string,
    payload: NoInfer<PayloadIn>,
    options: SubmitOptions = {},
  ): Promise<Job<Result>> {
    const definition: Kind = typeof kind === 'string' ? defineKind(kind) : kind
    // Checked, and sent as it was given: the handler's side applies the schema's transformations.
    await checkValue(definition.options.payload, payload, 'payload')
    const call: SubmitCall = {}
    if (options.key !== undefined) call.key = options.key
    if (options.tx !== undefined) call.tx = options.tx
    const { response, replayed } = await this.#transport.submit(toRequest(definition, payload, options), call)
    return new Job<Result>(this.#transport, response.job_id, replayed, definition)
  }

  /** The job of an id that was kept somewhere. */
  job<Result = unknown>(id: string, kind?: Kind<unknown, unknown, Result, unknown>): Job<Result> {
    return new Job<Result>(this.#transport, id, false, kind)
  }

  /** As `job(id).watch()`. */
  watch(jobId: string, options: WatchOptions = {}): AsyncGenerator<JobEvent> {
    return this.#transport.watch(jobId, options)
  }

  list(filter: JobListFilter = {}): Promise<Page<JobShape>> {
    return this.#transport.list(filter)
  }
}

function toRequest(kind: Kind, payload: unknown, options: SubmitOptions): SubmitRequest {
  const { maxAttempts, timeoutSeconds, leaseTtlSeconds, continuationSeconds, backoff, priority } = kind.options
  const { domain, stages, seqScope } = kind.options
  return compact({
    kind: kind.name,
    queue: kind.queue,
    payload,
    priority: options.priority ?? priority,
    run_at: options.runAt?.toISOString(),
    delay_seconds: options.delaySeconds,
    max_attempts: maxAttempts,
    backoff:
      backoff &&
      compact({ base_seconds: backoff.baseSeconds, cap_seconds: backoff.capSeconds, jitter: backoff.jitter }),
    timeout_seconds: timeoutSeconds,
    lease_ttl_seconds: leaseTtlSeconds,
    continuation_seconds: continuationSeconds,
    domain,
    stages,
    seq_scope: seqScope,
    labels: options.labels,
    estimated_cost: options.estimatedCost,
    reservation_id: options.reservationId,
    key_ttl_hours: options.keyTtlHours,
    traceparent: options.traceparent,
  })
}

/** Without the members that are undefined: they would count as sent. */
function compact<T extends object>(value: T): T {
  const sent: Partial<T> = {}
  for (const name in value) if (value[name] !== undefined) sent[name] = value[name]
  return sent as T
}
