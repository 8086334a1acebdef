import { readFileSync } from 'node:fs'
import { type Call, createCall, createOpen, httpTransport, type Open, type Transport } from '@ichido/sdk/client'
import type { Page } from '@ichido/sdk/protocol'
import { certificateAdvice } from '@ichido/sdk/worker'
import { innermost } from '../../core/node/store-errors.ts'
import { readClientConfig, type Surroundings } from '../../node/config.ts'
import { Failure } from '../output/exit.ts'
import { startLine } from '../self.ts'

/** The environment of this process, read when it is used: several command lines may share a process. */
export const processEnv: Surroundings = {
  get env() {
    return process.env
  },
  get cwd() {
    return process.cwd()
  },
  readFile: (path) => readFileSync(path, 'utf8'),
}

/** The server that ICHIDO_URL names. */
export interface Connection {
  url: string
  token: string | undefined
  transport: Transport
  /** Sends one request; the server's answers are trusted to match the OpenAPI description. */
  ask<T>(
    method: 'GET' | 'POST' | 'PUT' | 'PATCH' | 'DELETE',
    path: string,
    body?: unknown,
    headers?: Record<string, string>,
  ): Promise<T>
  open: Open
}

/** No server answered. */
export class Unreachable extends Failure {}

export function connect(): Connection {
  const { url, token } = readClientConfig(processEnv)
  // Without retries, so that a person learns of an outage at once.
  const options = { url, token, fetch: reachingOut(url), retry: { tries: 1 } }
  const call: Call = createCall(options)
  return {
    url,
    token,
    transport: httpTransport(options),
    open: createOpen(options),
    ask: async <T>(method: string, path: string, body?: unknown, headers: Record<string, string> = {}) =>
      (await call(method, path, { headers, ...(body === undefined ? {} : { body }) })).body as T,
  }
}

/** fetch with errors that name the server and what to do. */
function reachingOut(url: string): typeof fetch {
  return async (input, init) => {
    try {
      return await fetch(input, init)
    } catch (error) {
      if (init?.signal?.aborted) throw error
      throw unreachable(url, error)
    }
  }
}

function unreachable(url: string, error: unknown): Unreachable {
  const why = innermost(error)
  const advice = certificateAdvice(why)
  if (advice !== null) return new Unreachable(`The certificate of ${url} is not trusted: ${why}`, advice)
  if (/wrong version number|packet length too long/i.test(why)) {
    return new Unreachable(`${url} does not speak HTTPS; try ${url.replace(/^https/, 'http')}`)
  }
  // A TLS server closes a plain connection; so does a server that stops.
  const closed = url.startsWith('http:') && /other side closed|ECONNRESET|socket hang up/i.test(why)
  const https = `Perhaps it speaks https: set ICHIDO_URL to ${url.replace(/^http/, 'https')}\n`
  return new Unreachable(
    `No server answers at ${url}: ${why}`,
    `${closed ? https : ''}Start it with \`${startLine()}\`, or set ICHIDO_URL to its URL.`,
  )
}

export function query(parameters: Readonly<Record<string, string | number | boolean | undefined>>): string {
  const given = Object.entries(parameters).flatMap(([name, value]) => (value === undefined ? [] : [[name, `${value}`]]))
  return given.length === 0 ? '' : `?${new URLSearchParams(given)}`
}

/** The maximum of the server for a page. */
const PAGE_MAX = 200

/** Yields all items of a list, page by page. */
export async function* allPages<T>(ask: Connection['ask'], path: string): AsyncGenerator<T> {
  for (let cursor: string | undefined, more = true; more; more = cursor !== undefined) {
    const page: Page<T> = await ask<Page<T>>('GET', `${path}${query({ limit: PAGE_MAX, cursor })}`)
    yield* page.data
    cursor = page.next_cursor ?? undefined
  }
}
