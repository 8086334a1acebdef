import {
  type ArtifactShape,
  BACKOFF_LIMITS,
  type BackoffShape,
  IchidoError,
  type JobListFilter,
  type JobShape,
  type NewReservationShape,
  type Page,
  type ReservationShape,
  type SubmitRequest,
} from '../protocol/index.ts'
import { inLibraryWords, worded } from './errors.ts'
import { Job } from './job.ts'
import { type Backoff, checkPayload, type Kind, requireJson, toKind } from './kind.ts'
import type { JobEvent, ReservationListFilter, Transport, UploadOptions, WatchOptions } from './transport.ts'

/** The options of `submit`. */
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
  /** The highest priority goes first; overrides the kind. */
  priority?: number
  /** How many runs of this job may start and fail; overrides the kind. */
  maxAttempts?: number
  /** The time limit of one run of this job; overrides the kind. */
  timeoutSeconds?: number
  /** The backoff of this job; members that are left out keep the kind's values. */
  backoff?: Backoff
  /** The job starts no earlier than this instant. */
  runAt?: Date
  /** The job starts no earlier than this long after its submission. */
  delaySeconds?: number
  /** Names and values by which jobs can be listed. */
  labels?: Record<string, string>
  /** Counts against the owner's cost limit until the run reports its cost. */
  estimatedCost?: number
  /** A reservation whose slot the job takes. */
  reservationId?: string
  /** How long the server remembers the key; default 24. */
  keyTtlHours?: number
  /** The W3C trace context; handlers get it as `job.traceparent`. */
  traceparent?: string
  /** A URL that gets a signed message about each end of the job. */
  callbackUrl?: string
  /** Files that the job waits for; send them with `artifacts.upload`. */
  artifacts?: readonly { name: string; sha256?: string; sizeBytes?: number }[]
  /** The job is canceled when no part of an artifact arrives for this long; default 300. */
  uploadTtlSeconds?: number
  /** Aborts the call; the job may have been created. */
  signal?: AbortSignal
}

/** The options of `trigger`. */
export interface TriggerOptions {
  /** Identifies the event; the same key is the same trigger. Default: a generated key for the retries of this call. */
  dedupeKey?: string
  /** Aborts the call; the trigger may have been recorded. */
  signal?: AbortSignal
}

/** A trigger that the server has recorded. */
export interface RecordedTrigger {
  /** The id of the trigger; a repeat has the id of the first. */
  id: string
  /** True if the dedupe key was known; nothing was recorded. */
  duplicate: boolean
  /** When the trigger was recorded. */
  createdAt: Date
}

/** One of the jobs that are submitted together, with a payload of its kind. */
export interface BatchItem<K extends Kind | string = Kind | string>
  extends Omit<SubmitOptions, 'tx' | 'user' | 'signal'> {
  /** A kind or its name. */
  kind: K
  /** The payload of the job. */
  payload: K extends Kind<infer PayloadIn, unknown, unknown, unknown> ? PayloadIn : unknown
}

/** The outcome of one job of a batch. */
type BatchOutcome<K extends Kind | string> = PromiseSettledResult<
  Job<K extends Kind<unknown, unknown, infer Result, unknown> ? Result : unknown>
>

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
  callbackUrl: true,
  artifacts: true,
  uploadTtlSeconds: true,
}
const SUBMIT_OPTIONS: Record<keyof SubmitOptions, true> = { ...BATCH_OPTIONS, tx: true, user: true, signal: true }
const TRIGGER_OPTIONS: Record<keyof TriggerOptions, true> = { dedupeKey: true, signal: true }

/** Submits jobs and follows them, over any transport. */
export class Client {
  readonly #transport: Transport
  /** Slots of the quota that are held before their jobs exist. */
  readonly reservations: Reservations
  /** Files that jobs need or make. */
  readonly artifacts: Artifacts

  constructor(transport: Transport) {
    this.#transport = transport
    this.reservations = new Reservations(transport)
    this.artifacts = new Artifacts(transport)
  }

  /**
   * Submits a job. A second submission with the same `key` gets the same job.
   *
   * @example
   * const job = await client.submit('resize', { url: 'https://example.com/a.png' }, { key: 'thumb-1' })
   * console.log(job.replayed, await job.result())
   */
  async submit<PayloadIn, PayloadOut, Result, ResultIn>(
    kind: Kind<PayloadIn, PayloadOut, Result, ResultIn> | string,
    payload: NoInfer<PayloadIn>,
    options: SubmitOptions = {},
  ): Promise<Job<Result>> {
    const definition = toKind(kind)
    checkOptions('a submission', options, SUBMIT_OPTIONS)
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
    const checks = items.map(toChecked)
    const isLate = checks.some((check) => check instanceof Promise)
    const checked = isLate ? await Promise.all(checks) : (checks as Checked[])
    const sound = checked.flatMap((item) => ('request' in item ? item : []))
    const requests = sound.map(({ request }) => request)
    const allRefused = items.length > 0 && requests.length === 0
    const outcomes = allRefused ? [] : await worded(this.#transport.submitMany(requests, signal))
    const jobs = outcomes.map(
      (outcome, i): PromiseSettledResult<Job> =>
        outcome.status === 'rejected'
          ? { status: 'rejected', reason: inLibraryWords(outcome.reason) }
          : { status: 'fulfilled', value: Job.accepted(this.#transport, outcome.value, sound[i]?.kind) },
    )
    let sent = 0
    return checked.map((item) => ('request' in item ? jobs[sent++] : item)) as never
  }

  /**
   * Records that something happened: each definition whose `on` has this topic makes a job. A second call with the same
   * `dedupeKey` makes no more jobs.
   *
   * @example
   * await ichido.trigger('order.paid', { orderId, total }, { dedupeKey: `paid-${orderId}` })
   */
  async trigger(topic: string, data?: unknown, options: TriggerOptions = {}): Promise<RecordedTrigger> {
    checkOptions('a trigger', options, TRIGGER_OPTIONS)
    requireJson(data, 'data')
    const recorded = await worded(this.#transport.trigger({ topic, data }, options))
    const { trigger_id: id, created_at, duplicate } = recorded
    return { id, duplicate, createdAt: new Date(created_at) }
  }

  /** Returns a handle for a job whose id you know. */
  job<Result = unknown>(id: string, kind?: Kind<unknown, unknown, Result, unknown>): Job<Result> {
    return new Job<Result>(this.#transport, id, { kind })
  }

  /** Yields the events of a job, like `job(id).watch()`. */
  watch(jobId: string, options: WatchOptions = {}): AsyncGenerator<JobEvent> {
    return this.#transport.watch(jobId, options)
  }

  /** Lists jobs, newest first. */
  list(filter: JobListFilter = {}, { signal }: { signal?: AbortSignal } = {}): Promise<Page<JobShape>> {
    return this.#transport.list(filter, signal)
  }
}

/** Slots of the quota that are held before their jobs exist. */
export class Reservations {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /** Holds a slot, for 300 s by default; rejects with `QuotaExceeded` if none is free. */
  reserve({ ttlSeconds, signal }: { ttlSeconds?: number; signal?: AbortSignal } = {}): Promise<NewReservationShape> {
    return worded(this.#transport.reserve(ttlSeconds, signal))
  }

  /** Gives the slot to a job that exists. A submission with `reservationId` does this by itself. */
  consume(reservationId: string, jobId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ReservationShape> {
    return worded(this.#transport.consume(reservationId, jobId, signal))
  }

  /** Gives the slot back. */
  release(reservationId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ReservationShape> {
    return this.#transport.release(reservationId, signal)
  }

  /** Lists reservations, newest first. */
  list(filter: ReservationListFilter = {}, { signal }: { signal?: AbortSignal } = {}): Promise<Page<ReservationShape>> {
    return this.#transport.reservations(filter, signal)
  }
}

/** Files that jobs need or make. */
export class Artifacts {
  readonly #transport: Transport

  constructor(transport: Transport) {
    this.#transport = transport
  }

  /**
   * Sends a file in parts, and continues an interrupted upload. A `File` of a page, or in Node `await openAsBlob(path)`, is
   * read while it is sent.
   *
   * @example
   * const job = await client.submit('train', null, { artifacts: [{ name: 'data.tar' }] })
   * await client.artifacts.upload(await openAsBlob('data.tar'), { name: 'data.tar', jobId: job.id })
   */
  upload(bytes: Blob | Uint8Array, options: UploadOptions): Promise<ArtifactShape> {
    const blob = bytes instanceof Blob ? bytes : new Blob([new Uint8Array(bytes)])
    return worded(this.#transport.upload(blob, options))
  }

  /** Lists the files that a job waits for, was given and has made. */
  list(jobId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ArtifactShape[]> {
    return this.#transport.artifacts(jobId, signal)
  }

  /** Streams the bytes of a file. */
  download(artifactId: string, { signal }: { signal?: AbortSignal } = {}): Promise<ReadableStream<Uint8Array>> {
    return this.#transport.download(artifactId, signal)
  }
}

/** One job of a batch; a refused job is not sent. */
type Checked = { kind: Kind; request: SubmitRequest } | PromiseRejectedResult

const refusedAs = (reason: unknown): PromiseRejectedResult => ({ status: 'rejected', reason })

/** A promise only if the kind's schema needs one: promises took a tenth of the time of a batch. */
function toChecked({ kind: given, payload, ...options }: BatchItem): Checked | Promise<Checked> {
  try {
    const kind = toKind(given)
    checkOptions('a submission', options, BATCH_OPTIONS)
    const sound = { kind, request: toRequest(kind, payload, options, options.key) }
    const checking = checkPayload(kind, payload)
    return checking instanceof Promise ? checking.then(() => sound, refusedAs) : sound
  } catch (error) {
    return refusedAs(error)
  }
}

/** For callers without type checks, who may pass another library's `jobId`, `type` or `delay`. */
function checkOptions(call: string, options: object, known: object): void {
  for (const name in options) {
    if (Object.hasOwn(known, name)) continue
    throw new TypeError(`${name} is not an option of ${call}; the options are ${Object.keys(known).join(', ')}`)
  }
}

/** @param key is part of the request in a batch; a single submission sends it as a header. */
function toRequest(kind: Kind, payload: unknown, options: SubmitOptions, key?: string): SubmitRequest {
  const { leaseTtlSeconds, continuationSeconds, domain, stages, seqScope } = kind.options
  return compact({
    kind: kind.name,
    queue: kind.queue,
    payload,
    priority: options.priority ?? kind.options.priority,
    run_at: options.runAt == null ? undefined : instant(options.runAt),
    delay_seconds: options.delaySeconds,
    max_attempts: options.maxAttempts ?? kind.options.maxAttempts,
    backoff: toBackoff({ ...kind.options.backoff, ...compact(options.backoff ?? {}) }),
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
    callback_url: options.callbackUrl,
    artifacts: options.artifacts?.map(({ name, sha256, sizeBytes }) =>
      compact({ name, sha256, size_bytes: sizeBytes }),
    ),
    upload_ttl_seconds: options.uploadTtlSeconds,
    idempotency_key: key,
  })
}

/** Undefined if it is empty. */
function toBackoff(given: Backoff): BackoffShape | undefined {
  checkOptions('backoff', given, BACKOFF_LIMITS)
  const { baseSeconds, capSeconds, jitter } = given
  const backoff = compact({ base_seconds: baseSeconds, cap_seconds: capSeconds, jitter })
  return Object.keys(backoff).length === 0 ? undefined : backoff
}

/** Throws for anything but a valid Date, because types may be unchecked. */
function instant(runAt: Date): string {
  if (runAt instanceof Date && !Number.isNaN(runAt.getTime())) return runAt.toISOString()
  throw new IchidoError('INVALID_PAYLOAD', 'runAt must be a valid Date', { field: 'runAt' })
}

/** Removes undefined members, which would count as sent. */
function compact<T extends object>(value: T): T {
  const sent: Partial<T> = {}
  for (const name in value) if (value[name] !== undefined) sent[name] = value[name]
  return sent as T
}
