import { once } from 'node:events'
import { readFileSync } from 'node:fs'
import { createServer, type IncomingMessage, type ServerResponse, request as send } from 'node:http'
import type { Api } from './api.ts'

const FILES = {
  '/': ['index.html', 'text/html; charset=utf-8'],
  '/page.css': ['page.css', 'text/css; charset=utf-8'],
  '/page.js': ['page.js', 'text/javascript; charset=utf-8'],
  '/icon.svg': ['icon.svg', 'image/svg+xml'],
} as const
const POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
const EVENTS = /^\/v1\/jobs\/[\w-]+\/events$/
const STREAM_TOKEN = /^\/scans\/([\w-]+)\/stream-token$/

interface PageOptions {
  api: Api
  port: number
  /** Kills the control plane like a crash. */
  kill(): void
}

/** Serves the page and its requests. As in any deployment, the page's server stands between browser and control plane. */
export class PageServer {
  readonly url: string
  readonly #options: PageOptions
  readonly #origins: readonly string[]
  readonly #server = createServer((request, response) => {
    this.#answer(request, response).catch(() => unavailable(response))
  })

  constructor(options: PageOptions) {
    const { port } = options
    this.url = `http://127.0.0.1:${port}`
    this.#options = options
    this.#origins = [this.url, `http://localhost:${port}`]
  }

  async listen(): Promise<void> {
    this.#server.listen(this.#options.port, '127.0.0.1')
    await once(this.#server, 'listening')
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { api, kill } = this.#options
    const { method, url = '/', headers } = request
    const { pathname } = new URL(url, api.url)
    if (method === 'GET' && EVENTS.test(pathname)) return follow(api.url, request, response)
    if (method === 'GET') return sendFile(pathname, response)
    // This refuses requests that another site's page sends in the user's name.
    if (method !== 'POST' || !this.#origins.includes(headers.origin ?? '')) return end(response, 403)
    const key = headers['idempotency-key']
    const jobId = STREAM_TOKEN.exec(pathname)?.[1]
    if (pathname === '/scans' && typeof key === 'string') return passOn(await api.submit(key), response)
    if (jobId !== undefined) return passOn(await api.streamToken(jobId), response)
    if (pathname !== '/kill') return end(response, 404)
    kill()
    end(response, 204)
  }
}

const end = (response: ServerResponse, status: number) => void response.writeHead(status).end()

function sendFile(path: string, response: ServerResponse) {
  const found = Object.entries(FILES).find(([known]) => known === path)
  if (found === undefined) return end(response, 404)
  const [name, type] = found[1]
  response.writeHead(200, { 'content-type': type, 'cache-control': 'no-cache', 'content-security-policy': POLICY })
  response.end(readFileSync(new URL(`page/${name}`, import.meta.url)))
}

async function passOn(answer: Response, response: ServerResponse): Promise<void> {
  response.writeHead(answer.status, { 'content-type': 'application/json', 'cache-control': 'no-store' })
  response.end(await answer.text())
}

/** Forwards the stream. The control plane checks the stream token in the URL. */
function follow(to: string, { url = '', headers }: IncomingMessage, response: ServerResponse): void {
  const { accept = '', 'last-event-id': lastEventId } = headers
  const upstream = send(to + url, {
    headers: { accept, ...(lastEventId === undefined ? {} : { 'last-event-id': lastEventId }) },
  })
  upstream.on('response', (stream) => {
    response.writeHead(stream.statusCode ?? 502, stream.headers)
    // If the upstream breaks, this stream breaks, too, and the browser reconnects after the last event it has seen.
    stream.on('error', () => response.destroy()).pipe(response)
  })
  upstream.on('error', () => unavailable(response))
  response.on('close', () => upstream.destroy())
  upstream.end()
}

function unavailable(response: ServerResponse): void {
  if (response.headersSent) response.destroy()
  else end(response, 503)
}
