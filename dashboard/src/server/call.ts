import { type CallOptions, Client, createCall, httpTransport } from '@ichido/sdk/client'
import { signal } from '@preact/signals'

/** The URL of the server with its base path, without a slash at the end. The server writes it into the page as `<base>`. */
export const BASE_URL = new URL('.', document.baseURI).href.replace(/\/$/, '')
export const BASE_PATH = new URL('.', document.baseURI).pathname.replace(/\/$/, '')

const TIMEOUT_MS = 15_000
const CSRF_HEADER = 'ichido-csrf'

/** Proves that a request comes from this page. The server gives it at sign-in, and other sites cannot read it. */
export const csrfToken = signal<string | null>(null)

const options = {
  url: BASE_URL,
  fetch: (target: RequestInfo | URL, init: RequestInit = {}) => {
    const headers = new Headers(init.headers)
    if (csrfToken.value !== null) headers.set(CSRF_HEADER, csrfToken.value)
    return fetch(target, { ...init, headers, cache: 'no-store', credentials: 'same-origin' })
  },
}

const call = createCall(options)

/** Submits, follows and retries jobs. */
export const client = new Client(httpTransport(options))

/** Reads from the server. The answer is trusted to match the OpenAPI description. */
export async function read<T>(path: string, signal?: AbortSignal): Promise<T> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const { body } = await call('GET', path, {
    signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
  })
  return body as T
}

/** Changes something on the server. */
export async function send<T>(method: 'POST' | 'PUT' | 'PATCH' | 'DELETE', path: string, body?: unknown): Promise<T> {
  const given: CallOptions = { signal: AbortSignal.timeout(TIMEOUT_MS) }
  if (body !== undefined) given.body = body
  return (await call(method, path, given)).body as T
}

/** A path with its query, without the parameters that are empty. */
export function withQuery(
  path: string,
  parameters: Record<string, string | number | boolean | null | undefined>,
): string {
  const given = Object.entries(parameters).filter(([, value]) => value !== undefined && value !== null && value !== '')
  const query = new URLSearchParams(given.map(([name, value]) => [name, String(value)])).toString()
  return query === '' ? path : `${path}?${query}`
}
