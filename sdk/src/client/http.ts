import { ERRORS, type ErrorBody, IchidoError } from '../protocol/index.ts'
import type { Transport } from './transport.ts'

export interface HttpOptions {
  url: string
  token?: string | undefined
  fetch?: typeof fetch
}

/** The control plane over HTTP. */
export function httpTransport(options: HttpOptions): Transport {
  const call = createCall(options)
  return {
    async submit(request, { key, tx }) {
      if (tx !== undefined) throw new TypeError('tx works in process only: open({ pool }), not open({ url })')
      // In the body, where every key can be written: a header takes no quote at its beginning, and ASCII only.
      const keyed = key === undefined ? request : { ...request, idempotency_key: key }
      const { body, response } = await call('POST', '/v1/jobs', { body: keyed })
      return { response: body as never, replayed: response.headers.get('idempotent-replayed') === 'true' }
    },
    get: async (jobId) => (await call('GET', pathOf(jobId))).body as never,
    list: async (filter) => (await call('GET', `/v1/jobs?${query(filter)}`)).body as never,
    cancel: async (jobId) => (await call('POST', `${pathOf(jobId)}/cancel`)).body as never,
    async result(jobId, waitMs, signal) {
      const path = `${pathOf(jobId)}/result?wait_seconds=${Math.floor(waitMs / 1000)}`
      return (await call('GET', path, signal ? { signal } : {})).body as never
    },
    async events(jobId, after, waitMs, signal) {
      const path = `${pathOf(jobId)}/events?after=${after}&wait_seconds=${Math.floor(waitMs / 1000)}`
      const { body } = await call('GET', path, {
        headers: { accept: 'application/json' },
        ...(signal ? { signal } : {}),
      })
      return body as never
    },
  }
}

export interface CallOptions {
  body?: unknown
  headers?: Record<string, string>
  signal?: AbortSignal
}

export type Call = (
  method: string,
  path: string,
  options?: CallOptions,
) => Promise<{ body: unknown; response: Response }>

/** One request, with its answer read and an error answer thrown as what it says. */
export function createCall(options: HttpOptions): Call {
  const send = createSend(options)
  return async (method, path, callOptions = {}) => {
    const response = await send(method, path, callOptions)
    const text = await response.text()
    const answer = parse(text)
    if (response.ok && answer !== undefined) return { body: answer, response }
    throw toError(response.status, answer, text)
  }
}

/** A GET whose answer the caller reads as it comes. */
export type Open = (path: string, options: Omit<CallOptions, 'body'>) => Promise<Response>

export function createOpen(options: HttpOptions): Open {
  const send = createSend(options)
  return async (path, callOptions) => {
    const response = await send('GET', path, callOptions)
    if (response.ok) return response
    const text = await response.text()
    throw toError(response.status, parse(text), text)
  }
}

function createSend({ url, token, fetch: send = fetch }: HttpOptions) {
  const base = url.replace(/\/+$/, '')
  return (method: string, path: string, { body, headers = {}, signal }: CallOptions): Promise<Response> =>
    send(`${base}${path}`, {
      method,
      headers: {
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(token === undefined ? {} : { authorization: `Bearer ${token}` }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    })
}

function pathOf(jobId: string): string {
  return `/v1/jobs/${encodeURIComponent(jobId)}`
}

/** Undefined when it is not JSON. */
function parse(text: string): unknown {
  try {
    return text === '' ? null : (JSON.parse(text) as unknown)
  } catch {
    return undefined
  }
}

function toError(status: number, answer: unknown, text: string): Error {
  if (isErrorBody(answer)) {
    const { code, message, details, request_id } = answer.error
    return new IchidoError(code, message, { ...details, request_id })
  }
  return new Error(`The server answered ${status} with something that is not Ichido's: ${text.slice(0, 200)}`)
}

function isErrorBody(answer: unknown): answer is ErrorBody {
  if (typeof answer !== 'object' || answer === null || !('error' in answer)) return false
  const { error } = answer
  return typeof error === 'object' && error !== null && 'code' in error && Object.hasOwn(ERRORS, String(error.code))
}

function query(filter: object): string {
  const entries = Object.entries(filter).flatMap(([name, value]) =>
    value === undefined ? [] : [[name, String(value)]],
  )
  return new URLSearchParams(entries as [string, string][]).toString()
}
