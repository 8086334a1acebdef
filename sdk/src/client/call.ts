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
import { checkRetry, type RetryOptions, retryAfterMs, retrying } from './retry.ts'

/** The options of `httpTransport`. */
export interface HttpOptions {
  /** The URL of the server. It may carry the token as a password, `https://ci:TOKEN@host`; `token` overrides it. */
  url: string
  /** An API token, or a function that returns one for each request, because stream tokens last only minutes. */
  token?: string | (() => string | Promise<string>) | undefined
  /** Replaces the global `fetch`. */
  fetch?: typeof fetch
  /** How failed calls are retried, and their timeouts. */
  retry?: RetryOptions | undefined
  /** Replaces clocks, timers and randomness, for tests. */
  world?: Partial<ClientWorld> | undefined
}

/** What a single request sends, and when it is given up. */
export interface CallOptions {
  /** A `Blob` is sent as it is, anything else as JSON. */
  body?: unknown
  /** More headers. */
  headers?: Record<string, string>
  /** Aborts the request. */
  signal?: AbortSignal
}

/** Sends one request and parses its answer. */
export type Call = (
  method: string,
  path: string,
  options?: CallOptions,
) => Promise<{ body: unknown; response: Response }>

/** Makes a function that sends one request, without retries; it throws for an error answer. */
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

/** Sends a GET and returns the unread response. */
export type Open = (path: string, options: Omit<CallOptions, 'body'>) => Promise<Response>

/** Makes a function that sends one GET, without retries; it throws for an error answer. */
export function createOpen(options: HttpOptions): Open {
  const send = createSend(options)
  return async (path, callOptions) => {
    const { response, reading } = await send('GET', path, callOptions)
    if (response.ok) return response
    const text = await reading(response.text())
    throw toError(response, parse(text), text, options)
  }
}

interface RequestOptions extends Omit<CallOptions, 'signal'> {
  signal?: AbortSignal | undefined
  /** Instead of `body`, if a later try sends another body. */
  bodyOf?: (tries: number) => Blob
  /** The key that the error names, so that the caller can repeat the call. */
  key?: string | undefined
  /** The timeout of one try, unless the options set one. */
  timeoutMs?: number
  /** True: never retried, because a repeat might act twice. */
  once?: boolean
}

export type Request = (
  method: string,
  path: string,
  options?: RequestOptions,
) => Promise<{ body: unknown; response: Response }>

/** Makes a function that sends a request with retries; each try tells the server its number. */
export function createRequest(options: HttpOptions): Request {
  checkRetry(options.retry ?? {})
  const call = createCall(options)
  const world = { ...platformWorld, ...options.world }
  return (method, path, requestOptions = {}) => {
    const { once = false, key, signal, timeoutMs, headers, body, bodyOf } = requestOptions
    const { retry = {} } = options
    const tries = once ? 1 : retry.tries
    const given = { ...retry, tries, timeoutMs: retry.timeoutMs ?? timeoutMs, key, signal }
    return retrying(world, given, (tries, either) =>
      call(method, path, {
        body: bodyOf?.(tries) ?? body,
        headers: { ...headers, 'ichido-attempt': String(tries) },
        signal: either,
      }),
    )
  }
}

/** Builds a query string without the undefined parameters. */
export function query(parameters: object): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined)
  return new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
}

function createSend({ url, token = tokenIn(url), fetch: send = fetch }: HttpOptions) {
  const base = withoutCredentials(url).replace(/\/+$/, '')
  /** A TypeError after the request was built is a network error; fetch throws TypeErrors for both. */
  const reading = <T>(answer: Promise<T>): Promise<T> =>
    answer.catch((error: unknown) => {
      throw error instanceof TypeError
        ? new NoAnswer(`No answer from ${base}: ${innermost(error)}`, { cause: error })
        : error
    })
  return async (method: string, path: string, { body, headers = {}, signal }: CallOptions) => {
    const bearer = typeof token === 'function' ? await token() : token
    const target = new URL(`${base}${path}`, globalThis.location?.href)
    // `localhost:8001` is a URL of the scheme localhost, which no retry would reach.
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

/** Undefined if the text is not JSON. */
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
