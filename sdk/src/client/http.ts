import { type ErrorBody, IchidoError, type SubmitRequest, type SubmitResponse } from '../protocol/index.ts'
import { platformWorld } from '../world.ts'
import { createOpen, createRequest, type HttpOptions, query, type Request } from './call.ts'
import { retrying, typed } from './retry.ts'
import type { Accepted, Retried, RetryCall, Transport } from './transport.ts'
import { uploadParts } from './upload.ts'
import { watchEvents } from './watch.ts'

/**
 * Connects to a control plane over HTTP. It retries failed calls if that is safe. A submission without a key gets a generated
 * one, so that a retry is safe.
 *
 * @example
 * const client = new Client(httpTransport({ url: 'http://127.0.0.1:8001', token }))
 * const job = await client.submit('resize', { width: 80 }, { key: 'thumb-1' })
 * console.log(job.replayed, await job.result())
 */
export function httpTransport(options: HttpOptions): Transport {
  const request = createRequest(options)
  const open = createOpen(options)
  const world = { ...platformWorld, ...options.world }
  const newKey = () => `client-${world.uuid()}`
  /** The server's answers are trusted to match the OpenAPI description. */
  const get = async (path: string, signal?: AbortSignal) => (await request('GET', path, { signal })).body as never
  const post = async (path: string, body?: unknown, signal?: AbortSignal) =>
    (await request('POST', path, { body, signal })).body as never
  return {
    async submit(job, { key: given, tx, user, signal }) {
      if (tx !== undefined) throw new TypeError('tx works in process only: open({ pool }), not open({ url })')
      if (user !== undefined)
        throw new TypeError('user works in process only; over HTTP the token determines the owner')
      const key = given ?? job.idempotency_key ?? newKey()
      // In the body, which can hold every key: a header allows only ASCII, and no leading quote.
      const { body, response } = await request('POST', '/v1/jobs', {
        body: { ...job, idempotency_key: key },
        key,
        signal,
      })
      return { response: body as never, replayed: isReplay(response) }
    },
    async submitMany(jobs, signal) {
      const keyed = jobs.map((job) => ({ ...job, idempotency_key: job.idempotency_key ?? newKey() }))
      return settledOf(keyed, await post('/v1/jobs/batch', { jobs: keyed }, signal))
    },
    get: (jobId, signal) => get(pathOf('jobs', jobId), signal),
    list: (filter, signal) => get(`/v1/jobs?${query(filter)}`, signal),
    cancel: (jobId, signal) => post(`${pathOf('jobs', jobId)}/cancel`, undefined, signal),
    retry: (jobId, call) => retryJob(request, `${pathOf('jobs', jobId)}/retry`, call, newKey),
    result: (jobId, waitMs, signal) =>
      get(`${pathOf('jobs', jobId)}/result?wait_seconds=${Math.floor(waitMs / 1000)}`, signal),
    watch: (jobId, watchOptions) => watchEvents(open, world, `${pathOf('jobs', jobId)}/events`, watchOptions),
    trigger: ({ topic, data = null }, { dedupeKey = newKey(), signal }) =>
      post('/v1/triggers', { topic, dedupe_key: dedupeKey, data }, signal),
    // With a generated id, so that a retry holds one slot.
    reserve: (ttlSeconds, signal) =>
      post('/v1/reservations', { ttl_seconds: ttlSeconds, reservation_id: world.uuid() }, signal),
    consume: (id, jobId, signal) => post(`${pathOf('reservations', id)}/consume`, { job_id: jobId }, signal),
    release: (id, signal) => post(`${pathOf('reservations', id)}/release`, undefined, signal),
    reservations: (filter, signal) => get(`/v1/reservations?${query(filter)}`, signal),
    upload: (bytes, uploadOptions) => uploadParts(request, world, bytes, uploadOptions),
    artifacts: async (jobId, signal) =>
      ((await get(`${pathOf('jobs', jobId)}/artifacts`, signal)) as { data: never }).data,
    async download(artifactId, signal) {
      const response = await retrying(world, { ...options.retry, signal }, (tries, either) =>
        open(pathOf('artifacts', artifactId), { headers: { 'ichido-attempt': String(tries) }, signal: either }),
      )
      return response.body ?? new Blob().stream()
    },
  }
}

/** With a payload it is a submission, and a key makes it safe to repeat. Without one it is sent only once. */
async function retryJob(request: Request, path: string, call: RetryCall, newKey: () => string): Promise<Retried> {
  const { payload, key = newKey(), signal } = call
  if (!('payload' in call)) {
    return { job: (await request('POST', path, { body: {}, once: true, signal })).body as never, replayed: false }
  }
  const headers = { 'idempotency-key': quoted(key) }
  const { body, response } = await request('POST', path, { body: { payload }, headers, key, signal })
  return { job: body as never, replayed: isReplay(response) }
}

/** A string of RFC 8941, because a bare key that begins with a quote would be parsed differently. */
function quoted(key: string): string {
  if (typeof key === 'string' && /^[\x21-\x7e]{1,256}$/.test(key)) return `"${key.replace(/["\\]/g, '\\$&')}"`
  const message = 'key must be a string of 1 to 256 visible ASCII characters'
  throw new IchidoError('INVALID_PAYLOAD', message, { field: 'key' })
}

interface BatchAnswer {
  data: { replayed: boolean; body?: SubmitResponse; error?: ErrorBody['error'] }[]
}

function settledOf(jobs: readonly SubmitRequest[], { data }: BatchAnswer): PromiseSettledResult<Accepted>[] {
  return data.map(({ replayed, body, error }, i) => {
    if (body !== undefined) return { status: 'fulfilled', value: { response: body, replayed } }
    const { code, message, details, request_id } = error ?? { code: 'INTERNAL', message: 'No outcome' }
    const refused = new IchidoError(code, message, { ...details, request_id })
    return { status: 'rejected', reason: typed(refused, jobs[i]?.idempotency_key) }
  })
}

function isReplay({ headers }: Response): boolean {
  return headers.get('idempotent-replayed') === 'true'
}

function pathOf(list: 'jobs' | 'reservations' | 'artifacts', id: string): string {
  return `/v1/${list}/${encodeURIComponent(id)}`
}
