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

/** The server shares answers between open dashboards, if they accept an answer of this age. No answer is shared for longer. */
const SHARED_SECONDS_MAX = 5
let freshUntilMs = 0

/** From now on the page takes no answer that is older than what it has just changed. */
export function readFresh(): void {
  freshUntilMs = performance.now() + SHARED_SECONDS_MAX * 1_000
}

/** Reads from the server. The answer is trusted to match the OpenAPI description. `ageMs` is the age that it may have. */
export async function read<T>(path: string, signal?: AbortSignal, ageMs = 0): Promise<T> {
  const timeout = AbortSignal.timeout(TIMEOUT_MS)
  const seconds = performance.now() < freshUntilMs ? 0 : Math.min(Math.floor(ageMs / 1_000), SHARED_SECONDS_MAX)
  const { body } = await call('GET', path, {
    headers: seconds === 0 ? {} : { 'cache-control': `max-age=${seconds}` },
    signal: signal === undefined ? timeout : AbortSignal.any([signal, timeout]),
  })
  return body as T
}

/** Changes something on the server. */
export async function send<T>(method: 'POST' | 'PUT' | 'PATCH' | 'DELETE', path: string, body?: unknown): Promise<T> {
  const given: CallOptions = { signal: AbortSignal.timeout(TIMEOUT_MS) }
  if (body !== undefined) given.body = body
  try {
    return (await call(method, path, given)).body as T
  } finally {
    readFresh()
  }
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
