import { type BackoffShape, IchidoError, type JobShape, type Page, type SubmitRequest } from '../protocol/index.ts'
import { Artifacts } from './artifacts.ts'
import { Job } from './job.ts'
import { requireJson } from './json-value.ts'
import { type Backoff, checkPayload, type Kind, toKind } from './kind.ts'
import { Reservations } from './reservations.ts'
import type { JobEvent, JobListFilter, Transport, WatchOptions } from './transport.ts'
import { inLibraryWords, worded } from './wording.ts'

export interface SubmitOptions {
  /**
   * Identifies the submission: a second submission with the same key gets the same job. Over HTTP, a submission without a key
   * gets a generated one (`client-` and a UUID) for the retries of this call. In process none is generated, because no answer
   * can get lost.
   */
  key?: string
  /** A PostgreSQL client inside a transaction: the job exists if and only if that transaction commits. In process only. */
  tx?: unknown
  /**
   * The owner of the job, a tenant of the application with its own limits, costs, keys and fair share. In process only; the
   * default is `local`. Over HTTP the token determines the owner.
   */
  user?: string
  priority?: number
  /** How many runs of this job may start and fail; overrides the kind. */
  maxAttempts?: number
  /** The time limit of one run of this job; overrides the kind. */
  timeoutSeconds?: number
  /** The backoff of this job; members that are left out keep the kind's values. */
  backoff?: Backoff
  runAt?: Date
  delaySeconds?: number
  labels?: Record<string, string>
  estimatedCost?: number
  reservationId?: string
  keyTtlHours?: number
  traceparent?: string
  /** Files that the job waits for; send them with `artifacts.upload`. */
  artifacts?: readonly { name: string; sha256?: string; sizeBytes?: number }[]
  /** The job is canceled when no part of an artifact arrives for this long; default 300. */
  uploadTtlSeconds?: number
  signal?: AbortSignal
}

export interface TriggerOptions {
  /** Identifies what happened. Without it, each call is a new trigger; retries of that call are not. */
  dedupeKey?: string
  signal?: AbortSignal
}

/** A trigger that the server has recorded. */
export interface RecordedTrigger {
  id: string
  /** True if the dedupe key was known; nothing was recorded. */
  duplicate: boolean
  createdAt: Date
}

/** One of the jobs that are submitted together, with a payload of its kind. */
export interface BatchItem<K extends Kind | string = Kind | string>
  extends Omit<SubmitOptions, 'tx' | 'user' | 'signal'> {
  kind: K
  payload: K extends Kind<infer PayloadIn, unknown, unknown, unknown> ? PayloadIn : unknown
}

/** What became of a job that was submitted along with others. */
type BatchOutcome<K extends Kind | string> = PromiseSettledResult<
  Job<K extends Kind<unknown, unknown, infer Result, unknown> ? Result : unknown>
>

/** Submits jobs and follows them, over any transport. */
export class Client {
  readonly #transport: Transport
  readonly reservations: Reservations
  readonly artifacts: Artifacts

  constructor(transport: Transport) {
    this.#transport = transport
    this.reservations = new Reservations(transport)
    this.artifacts = new Artifacts(transport)
  }

  async submit<PayloadIn, PayloadOut, Result, ResultIn>(
    kind: Kind<PayloadIn, PayloadOut, Result, ResultIn> | string,
    payload: NoInfer<PayloadIn>,
    options: SubmitOptions = {},
  ): Promise<Job<Result>> {
    const definition = toKind(kind)
    checkOptions('submission', options, SUBMIT_OPTIONS)
    await checkPayload(definition, payload)
    const accepted = await worded(this.#transport.submit(toRequest(definition, payload, options), options))
    return Job.accepted<Result>(this.#transport, accepted, definition)
  }

  /**
   * Submits up to 1,000 jobs in one call. Each has its own key, and its own outcome at the same index. A job that the server or
   * its kind's schema refuses does not affect the others. Give your own keys to jobs that you would submit again after the
   * whole call has failed.
   */
  async batch<const Kinds extends readonly (Kind | string)[]>(
    items: { readonly [I in keyof Kinds]: BatchItem<Kinds[I]> },
    { signal }: { signal?: AbortSignal } = {},
  ): Promise<{ -readonly [I in keyof Kinds]: BatchOutcome<Kinds[I]> }> {
    const checked = await Promise.allSettled(items.map(toChecked))
    const sound = checked.flatMap((item) => (item.status === 'fulfilled' ? item.value : []))
    const requests = sound.map(({ request }) => request)
    const allRefused = items.length > 0 && requests.length === 0
    const outcomes = allRefused ? [] : await worded(this.#transport.submitMany(requests, signal))
    const jobs = outcomes.map(
      (outcome, i): PromiseSettledResult<Job> =>
        outcome.status === 'rejected'
          ? { status: 'rejected', reason: inLibraryWords(outcome.reason) }
          : { status: 'fulfilled', value: Job.accepted(this.#transport, outcome.value, sound[i]?.kind) },
    )
    return checked.map((item) => (item.status === 'rejected' ? item : jobs.shift())) as never
  }

  /**
   * Says that something happened: the leader makes a job from each definition whose `on` has this topic. A second call with the
   * same `dedupeKey` makes nothing more.
   *
   * @example
   * await ichido.trigger('order.paid', { orderId, total }, { dedupeKey: `paid-${orderId}` })
   */
  async trigger(topic: string, data?: unknown, options: TriggerOptions = {}): Promise<RecordedTrigger> {
    checkOptions('trigger', options, TRIGGER_OPTIONS)
    requireJson(data, 'data')
    const recorded = await worded(this.#transport.trigger({ topic, data }, options))
    const { trigger_id: id, created_at, duplicate } = recorded
    return { id, duplicate, createdAt: new Date(created_at) }
  }

  /** A handle for a job whose id you know. */
  job<Result = unknown>(id: string, kind?: Kind<unknown, unknown, Result, unknown>): Job<Result> {
    return new Job<Result>(this.#transport, id, { kind })
  }

  /** The same as `job(id).watch()`. */
  watch(jobId: string, options: WatchOptions = {}): AsyncGenerator<JobEvent> {
    return this.#transport.watch(jobId, options)
  }

  /** Newest first. */
  list(filter: JobListFilter = {}, { signal }: { signal?: AbortSignal } = {}): Promise<Page<JobShape>> {
    return this.#transport.list(filter, signal)
  }
}

/** Of a batch: what its schema refuses is not sent. */
async function toChecked({
  kind: given,
  payload,
  ...options
}: BatchItem): Promise<{ kind: Kind; request: SubmitRequest }> {
  const kind = toKind(given)
  checkOptions('submission', options, BATCH_OPTIONS)
  await checkPayload(kind, payload)
  return { kind, request: compact({ ...toRequest(kind, payload, options), idempotency_key: options.key }) }
}

const BATCH_OPTIONS: Record<keyof Omit<BatchItem, 'kind' | 'payload'>, true> = {
  key: true,
  priority: true,
  maxAttempts: true,
  timeoutSeconds: true,
  backoff: true,
  runAt: true,
  delaySeconds: true,
  labels: true,
  estimatedCost: true,
  reservationId: true,
  keyTtlHours: true,
  traceparent: true,
  artifacts: true,
  uploadTtlSeconds: true,
}
const SUBMIT_OPTIONS: Record<keyof SubmitOptions, true> = { ...BATCH_OPTIONS, tx: true, user: true, signal: true }
const TRIGGER_OPTIONS: Record<keyof TriggerOptions, true> = { dedupeKey: true, signal: true }

/** Where types were not checked, another library's `jobId` would pass for a key, and its `delay` for a delay. */
function checkOptions(what: string, options: object, known: object): void {
  for (const name in options) {
    if (Object.hasOwn(known, name)) continue
    throw new TypeError(`${name} is not an option of a ${what}; the options are ${Object.keys(known).join(', ')}`)
  }
}

function toRequest(kind: Kind, payload: unknown, options: SubmitOptions): SubmitRequest {
  const { leaseTtlSeconds, continuationSeconds, domain, stages, seqScope } = kind.options
  const backoff = { ...kind.options.backoff, ...compact(options.backoff ?? {}) }
  return compact({
    kind: kind.name,
    queue: kind.queue,
    payload,
    priority: options.priority ?? kind.options.priority,
    run_at: options.runAt == null ? undefined : instant(options.runAt),
    delay_seconds: options.delaySeconds,
    max_attempts: options.maxAttempts ?? kind.options.maxAttempts,
    backoff: toBackoff(backoff),
    timeout_seconds: options.timeoutSeconds ?? kind.options.timeoutSeconds,
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
    artifacts: options.artifacts?.map(({ name, sha256, sizeBytes }) =>
      compact({ name, sha256, size_bytes: sizeBytes }),
    ),
    upload_ttl_seconds: options.uploadTtlSeconds,
  })
}

/** An empty one is not sent. Where types were not checked, another library's `type` or `delay` would go unnoticed. */
function toBackoff({ baseSeconds, capSeconds, jitter, ...unknown }: Backoff): BackoffShape | undefined {
  const [name] = Object.keys(unknown)
  if (name !== undefined)
    throw new TypeError(`${name} is not an option of backoff; the options are baseSeconds, capSeconds, jitter`)
  const backoff = compact({ base_seconds: baseSeconds, cap_seconds: capSeconds, jitter })
  return Object.keys(backoff).length === 0 ? undefined : backoff
}

/** Also where types were not checked: a text, or a Date of a text that is none. */
function instant(runAt: Date): string {
  if (runAt instanceof Date && !Number.isNaN(runAt.getTime())) return runAt.toISOString()
  throw new IchidoError('INVALID_PAYLOAD', 'runAt must be a valid Date', { field: 'runAt' })
}

/** Without the members that are undefined: they would count as sent. */
function compact<T extends object>(value: T): T {
  const sent: Partial<T> = {}
  for (const name in value) if (value[name] !== undefined) sent[name] = value[name]
  return sent as T
}
