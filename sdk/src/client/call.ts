import { ERRORS, type ErrorBody, IchidoError } from '../protocol/index.ts'
import type { Timers } from '../world.ts'

export interface HttpOptions {
  url: string
  /** Or where to get one, for each request anew: stream tokens last for minutes. */
  token?: string | (() => string | Promise<string>) | undefined
  fetch?: typeof fetch
  /** For coming again after a connection was lost; default: the platform's. */
  timers?: Timers
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
  return async (method: string, path: string, { body, headers = {}, signal }: CallOptions): Promise<Response> => {
    const bearer = typeof token === 'function' ? await token() : token
    return send(`${base}${path}`, {
      method,
      headers: {
        ...(body === undefined ? {} : { 'content-type': 'application/json' }),
        ...(bearer === undefined ? {} : { authorization: `Bearer ${bearer}` }),
        ...headers,
      },
      ...(body === undefined ? {} : { body: JSON.stringify(body) }),
      ...(signal === undefined ? {} : { signal }),
    })
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

function toError(status: number, answer: unknown, text: string): Error {
  if (isErrorBody(answer)) {
    const { code, message, details, request_id } = answer.error
    return new IchidoError(code, message, { ...details, request_id })
  }
  return new ForeignAnswer(status, text)
}

/** Of a proxy, say. */
export class ForeignAnswer extends Error {
  override readonly name = 'ForeignAnswer'
  readonly status: number

  constructor(status: number, text: string) {
    super(`The server answered ${status} with something that is not Ichido's: ${text.slice(0, 200)}`)
    this.status = status
  }
}

function isErrorBody(answer: unknown): answer is ErrorBody {
  if (typeof answer !== 'object' || answer === null || !('error' in answer)) return false
  const { error } = answer
  return typeof error === 'object' && error !== null && 'code' in error && Object.hasOwn(ERRORS, String(error.code))
}
