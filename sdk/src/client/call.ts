import {
  ERRORS,
  type ErrorAdvice,
  type ErrorBody,
  IchidoError,
  tokenIn,
  withoutCredentials,
} from '../protocol/index.ts'
import { type ClientWorld, platformWorld } from '../world.ts'
import { ForeignAnswer, innermost, NoAnswer } from './errors.ts'
import { type RetryOptions, retryAfterMs } from './retry.ts'

export interface HttpOptions {
  /** The URL of the server. It may carry the token as a password, `https://ci:TOKEN@host`; `token` overrides it. */
  url: string
  /** An API token, or a function that returns one for each request, because stream tokens last only minutes. */
  token?: string | (() => string | Promise<string>) | undefined
  fetch?: typeof fetch
  /** How failed calls are retried, and how long calls may take. */
  retry?: RetryOptions | undefined
  /** Clocks, timers and randomness, for tests; default: the platform's. */
  world?: Partial<ClientWorld> | undefined
}

export interface CallOptions {
  /** Sent as JSON; bytes as they are. */
  body?: unknown
  headers?: Record<string, string>
  signal?: AbortSignal
}

export type Call = (
  method: string,
  path: string,
  options?: CallOptions,
) => Promise<{ body: unknown; response: Response }>

/** Sends one request and reads its answer; throws an error answer. */
export function createCall(options: HttpOptions): Call {
  const send = createSend(options)
  return async (method, path, callOptions = {}) => {
    const { response, reading } = await send(method, path, callOptions)
    const text = await reading(response.text())
    const answer = parse(text)
    if (response.ok && answer !== undefined) return { body: answer, response }
    throw toError(response, answer, text, options)
  }
}

/** Sends a GET and returns its answer as a stream. */
export type Open = (path: string, options: Omit<CallOptions, 'body'>) => Promise<Response>

export function createOpen(options: HttpOptions): Open {
  const send = createSend(options)
  return async (path, callOptions) => {
    const { response, reading } = await send('GET', path, callOptions)
    if (response.ok) return response
    const text = await reading(response.text())
    throw toError(response, parse(text), text, options)
  }
}

function createSend({ url, token = tokenIn(url), fetch: send = fetch }: HttpOptions) {
  const base = withoutCredentials(url).replace(/\/+$/, '')
  /** What the network does to a request is told from what is wrong with the request itself: fetch has TypeErrors for both. */
  const reading = <T>(answer: Promise<T>): Promise<T> =>
    answer.catch((error: unknown) => {
      throw error instanceof TypeError
        ? new NoAnswer(`No answer from ${base}: ${innermost(error)}`, { cause: error })
        : error
    })
  return async (method: string, path: string, { body, headers = {}, signal }: CallOptions) => {
    const bearer = typeof token === 'function' ? await token() : token
    const target = new URL(`${base}${path}`, globalThis.location?.href)
    // `localhost:8001` is an address of the scheme localhost: no try of it would ever be answered.
    if (!/^https?:$/.test(target.protocol)) throw new TypeError(`${base} must begin with http:// or https://`)
    const bytes = body instanceof Blob
    const request: RequestInit = {
      method,
      headers: new Headers({
        ...(body === undefined ? {} : { 'content-type': bytes ? 'application/octet-stream' : 'application/json' }),
        ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
        ...headers,
      }),
      ...(body === undefined ? {} : { body: bytes ? body : JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    }
    return { response: await reading(send(target.href, request)), reading }
  }
}

/** Undefined when it is not JSON. */
function parse(text: string): unknown {
  try {
    return text === '' ? null : (JSON.parse(text) as unknown)
  } catch {
    return undefined
  }
}

function toError({ status, headers }: Response, answer: unknown, text: string, { world }: HttpOptions): Error {
  const shouldRetry = headers.get('should-retry')
  const advice: ErrorAdvice = {
    shouldRetry: shouldRetry === null ? undefined : shouldRetry.trim().toLowerCase() === 'true',
    retryAfterMs: retryAfterMs(headers, (world?.now ?? platformWorld.now)()),
  }
  if (isErrorBody(answer)) {
    const { code, message, details, request_id } = answer.error
    return new IchidoError(code, message, { ...details, request_id }, advice)
  }
  return new ForeignAnswer(status, text, advice)
}

function isErrorBody(answer: unknown): answer is ErrorBody {
  if (typeof answer !== 'object' || answer === null || !('error' in answer)) return false
  const { error } = answer
  return typeof error === 'object' && error !== null && 'code' in error && Object.hasOwn(ERRORS, String(error.code))
}
