import { Readable } from 'node:stream'
import {
  type Accepted,
  type ReservationListFilter,
  type Retried,
  type RetryCall,
  type Transport,
  typed,
  type UploadOptions,
} from '@ichido/sdk/client'
import {
  type ArtifactShape,
  IchidoError,
  type JobListFilter,
  type JobShape,
  type Page,
  type RecordedTriggerShape,
  type ReservationShape,
  type SubmitResponse,
} from '@ichido/sdk/protocol'
import { unlessAborted } from '@ichido/sdk/world'
import type { z } from 'zod'
import { uploadQuery } from '../contract/artifacts.ts'
import { check, isUuid } from '../contract/common.ts'
import { listJobsQuery } from '../contract/jobs.ts'
import { listReservationsQuery, reserveRequest } from '../contract/limits.ts'
import { batchRequest, type SubmitInput, submitOwner, submitRequest } from '../contract/submit.ts'
import { triggerRequest } from '../contract/triggers.ts'
import { errorOf } from '../core/json/problem.ts'
import { findJsonProblem } from '../core/json/request-json.ts'
import { parseKey } from '../core/keys/key.ts'
import type { Caller } from '../core/limits/roles.ts'
import { StoreFull, StoreUnavailable } from '../core/node/store-errors.ts'
import type { Services } from '../services/index.ts'
import { jobFilterOf } from '../services/jobs/job-filter.ts'
import { refusalError, type Submission, type SubmitOptions } from '../services/submission/submit-job.ts'
import type { SubmitOutcome } from '../store/submission/submission.ts'

/** Submits inside the caller's own transaction. */
export type SubmitIn = (
  tx: unknown,
  caller: Caller,
  input: SubmitInput,
  options: SubmitOptions,
) => Promise<SubmitOutcome>

/** The wait of one read of a watch. */
const WATCH_WAIT_MS = 20_000

interface LocalTransport extends Transport {
  /** Ends waiting calls with the reason, and refuses later ones; resolves when no call uses the store. */
  close(reason: Error): Promise<void>
}

/** The client's transport inside the process; it calls the same services as the HTTP server. */
export function localTransport(services: Services, caller: Caller, submitIn: SubmitIn): LocalTransport {
  const closing = new AbortController()
  const closed = closing.signal
  const calls = new Set<Promise<unknown>>()

  async function whileOpen<T>(signal: AbortSignal | undefined, call: () => Promise<T>): Promise<T> {
    closed.throwIfAborted()
    signal?.throwIfAborted()
    try {
      const called = call()
      calls.add(called)
      // Kept until it has settled, even if its caller aborted, because it still uses the store.
      const settled = () => calls.delete(called)
      called.then(settled, settled)
      // A caller can also give up while it waits for a connection of the pool.
      return await (signal === undefined ? called : unlessAborted(called, signal))
    } catch (error) {
      closed.throwIfAborted()
      throw typed(toOutage(error))
    }
  }
  const orClosed = (signal: AbortSignal | undefined) => (signal ? AbortSignal.any([signal, closed]) : closed)

  return {
    submit: (request, { key, tx, user, signal }) =>
      // Not aborted inside the caller's transaction: no statement may run after the call has rejected.
      whileOpen(tx === undefined ? signal : undefined, async () => {
        signal?.throwIfAborted()
        const { input, options } = readSubmission(request, key)
        const owner = user === undefined ? caller : ownerOf(user)
        return acceptedOf(
          await (tx === undefined
            ? services.submission.submit(owner, input, options)
            : submitIn(tx, owner, input, options)),
        )
      }),
    submitMany: (requests, signal) =>
      whileOpen(signal, async () => {
        const { jobs } = check(batchRequest, { jobs: requests })
        const outcomes = await services.submission.submitMany(caller, jobs, (job) => readSubmission(job))
        return outcomes.map(settle)
      }),
    get: (jobId, signal) => whileOpen(signal, () => services.jobs.get(caller, jobId)),
    list: (filter, signal) => whileOpen(signal, () => listJobs(services, caller, filter)),
    cancel: (jobId, signal) => whileOpen(signal, async () => (await services.jobs.cancel(caller, jobId)).job),
    result: (jobId, waitMs, signal) =>
      whileOpen(signal, () => services.jobs.result(caller, jobId, waitMs, orClosed(signal))),
    retry: (jobId, call) => whileOpen(call.signal, () => retryJob(services, caller, jobId, call)),
    trigger: ({ topic, data }, { dedupeKey, signal }) =>
      whileOpen(signal, () => recordTrigger(services, caller, topic, data, dedupeKey)),
    reserve: (ttlSeconds, signal) =>
      whileOpen(signal, () => {
        const { ttl_seconds } = check(reserveRequest, { ttl_seconds: ttlSeconds })
        return services.reservations.reserve(caller, ttl_seconds)
      }),
    consume: (id, jobId, signal) => whileOpen(signal, () => services.reservations.consume(caller, id, jobId)),
    release: (id, signal) => whileOpen(signal, () => services.reservations.release(caller, id)),
    reservations: (filter, signal) => whileOpen(signal, () => listReservations(services, caller, filter)),
    upload: (bytes, options) => whileOpen(options.signal, () => upload(services, caller, bytes, options)),
    artifacts: (jobId, signal) => whileOpen(signal, () => services.artifacts.ofJob({ caller }, jobId)),
    download: (artifactId, signal) =>
      whileOpen(signal, async () => {
        const { open } = await services.artifacts.find({ caller }, artifactId)
        const bytes = await open(null)
        if (signal?.aborted) bytes.destroy()
        return Readable.toWeb(bytes) as ReadableStream<Uint8Array>
      }),
    async *watch(jobId, { after = 0, lastSeq, signal }) {
      let cursor =
        lastSeq === undefined ? after : await whileOpen(signal, () => services.events.cursorOfSeq(jobId, lastSeq))
      for (;;) {
        const from = cursor
        const { events, ended } = await whileOpen(signal, () =>
          services.events.read(caller, jobId, from, WATCH_WAIT_MS, orClosed(signal)),
        )
        for (const event of events) {
          cursor = event.cursor
          yield event
        }
        if (ended) return
      }
    },
    async close(reason) {
      closing.abort(reason)
      await Promise.allSettled(calls)
    },
  }
}

function acceptedOf(outcome: SubmitOutcome): Accepted {
  if (outcome.kind === 'refused') throw refusalError(outcome.refusal)
  return { response: JSON.parse(outcome.body) as SubmitResponse, replayed: outcome.kind === 'replayed' }
}

function settle(outcome: PromiseSettledResult<SubmitOutcome>): PromiseSettledResult<Accepted> {
  try {
    if (outcome.status === 'rejected') throw outcome.reason
    return { status: 'fulfilled', value: acceptedOf(outcome.value) }
  } catch (error) {
    return { status: 'rejected', reason: typed(toOutage(error)) }
  }
}

async function retryJob(services: Services, caller: Caller, jobId: string, call: RetryCall): Promise<Retried> {
  if (!('payload' in call)) return { job: await services.deadLetters.retry(caller, jobId), replayed: false }
  const payload = JSON.parse(checkJson(call.payload, 'payload')) as unknown
  return services.deadLetters.replace(caller, jobId, payload, checkKey(call.key))
}

async function recordTrigger(
  services: Services,
  caller: Caller,
  topic: string,
  data: unknown,
  dedupeKey = `client-${services.deps.world.uuid()}`,
): Promise<RecordedTriggerShape> {
  const sent = data === undefined ? null : (JSON.parse(checkJson(data, 'data')) as unknown)
  const item = check(triggerRequest, { topic, dedupe_key: dedupeKey, data: sent })
  const [recorded] = await services.triggers.record(caller, [item], (_, field) => field)
  if (recorded === undefined) throw new Error('A trigger has no answer')
  return recorded
}

/** A given owner has only the rights of a submitter. */
function ownerOf(user: string): Caller {
  return { userId: check(submitOwner, { user }).user, role: 'submitter' }
}

async function listReservations(
  services: Services,
  caller: Caller,
  filter: ReservationListFilter,
): Promise<Page<ReservationShape>> {
  const { active, ...asked } = filter
  const query = check(listReservationsQuery, { ...asked, ...(active === undefined ? {} : { active: String(active) }) })
  const { user_id: userId = null, active: activeOnly = false, limit } = query
  return services.reservations.list(caller, { userId, activeOnly, limit, cursor: placeOf(query.cursor) })
}

async function upload(
  services: Services,
  caller: Caller,
  bytes: Blob,
  { name, jobId, sha256, onProgress, signal }: UploadOptions,
): Promise<ArtifactShape> {
  const { size } = bytes
  const query = check(uploadQuery, { name, job_id: jobId, sha256, size_bytes: size })
  async function* source(): AsyncGenerator<Uint8Array> {
    let sentBytes = 0
    for await (const chunk of bytes.stream()) {
      signal?.throwIfAborted()
      yield chunk
      sentBytes += chunk.length
      onProgress?.({ sentBytes, totalBytes: size })
    }
  }
  const uploaded = await services.artifacts.upload(
    { caller },
    {
      name: query.name,
      jobId: query.job_id ?? null,
      leaseId: null,
      sha256: query.sha256 ?? null,
      sizeBytes: size,
      fromByte: null,
      contentLength: size,
      source: source(),
    },
  )
  signal?.throwIfAborted()
  if (uploaded.kind === 'ready' || uploaded.kind === 'repeated') return uploaded.artifact
  throw new IchidoError('INVALID_PAYLOAD', `${name} could not be read to its end`)
}

async function listJobs(services: Services, caller: Caller, filter: JobListFilter): Promise<Page<JobShape>> {
  const query = check(listJobsQuery, filter satisfies z.input<typeof listJobsQuery>)
  return services.jobs.list(caller, jobFilterOf(query), query.limit, placeOf(query.cursor), { order: query.order })
}

function placeOf(cursor: string | undefined): string | null {
  if (cursor === undefined || isUuid(cursor)) return cursor ?? null
  throw new IchidoError('INVALID_PAYLOAD', 'cursor must be the next_cursor of an earlier list', { field: 'cursor' })
}

function readSubmission(request: unknown, key?: string): Submission {
  const input = check(submitRequest, request)
  const { payload, labels } = input
  if (labels !== undefined) checkJson(labels, 'labels')
  const checkedKey = checkKey(key ?? input.idempotency_key)
  if (payload === undefined) return { input, options: { key: checkedKey } }
  const payloadJson = checkJson(payload, 'payload')
  const options = { key: checkedKey, payloadJson }
  // A key stands for the payload as it is sent, which `toJSON` may have changed.
  if (checkedKey === null) return { input, options }
  return { input: { ...input, payload: JSON.parse(payloadJson) as unknown }, options }
}

function checkKey(key: string | undefined): string | null {
  if (key === undefined) return null
  const parsed = parseKey(key)
  if (parsed.ok) return parsed.key
  throw new IchidoError('INVALID_PAYLOAD', `idempotency_key ${parsed.problem}`, { field: 'idempotency_key' })
}

/** Returns the value as JSON; refuses the same values as the HTTP server. */
export function checkJson(value: unknown, field: string): string {
  const refuse = (why: string) => new IchidoError('INVALID_PAYLOAD', `${field} ${why}`, { field })
  let text: string | undefined
  try {
    text = JSON.stringify(value)
  } catch (error) {
    throw refuse(`cannot be written as JSON: ${error instanceof Error ? error.message : String(error)}`)
  }
  if (text === undefined) throw refuse(`cannot be written as JSON: it is a ${typeof value}`)
  const problem = findJsonProblem(text, field)
  if (problem !== null) throw errorOf(problem)
  return text
}

/** Gives an outage of the store its code. */
export function toOutage(error: unknown): unknown {
  if (error instanceof StoreFull) return new IchidoError('STORE_FULL', error.message, { place: error.place })
  return error instanceof StoreUnavailable ? new IchidoError('UNAVAILABLE', error.message) : error
}
