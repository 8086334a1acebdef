import { once } from 'node:events'
import { createServer, type IncomingMessage, type ServerResponse } from 'node:http'
import { IchidoError } from 'ichido'
import type { Api } from './api.ts'
import type { PageFile } from './page-files.ts'
import { sendError } from './send.ts'

const HOST = '127.0.0.1'
/** No inline code and no other origins: a page's title or summary can never run as code. */
const POLICY = "default-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'; object-src 'none'"

interface WebServerOptions {
  files: ReadonlyMap<string, PageFile>
  api: Api
  onTrouble(error: unknown): void
}

/** The page and the API, for this machine only. */
export class WebServer {
  readonly #options: WebServerOptions
  readonly #server = createServer((request, response) => {
    this.#answer(request, response).catch((error: unknown) => {
      if (!(error instanceof IchidoError)) this.#options.onTrouble(error)
      sendError(response, error)
    })
  })

  constructor(options: WebServerOptions) {
    this.#options = options
  }

  async listen(port: number): Promise<string> {
    this.#server.listen(port, HOST)
    await once(this.#server, 'listening')
    return `http://${HOST}:${this.#port()}`
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  #port(): number {
    const address = this.#server.address()
    return typeof address === 'object' && address !== null ? address.port : 0
  }

  async #answer(request: IncomingMessage, response: ServerResponse): Promise<void> {
    const { method = 'GET', url = '/' } = request
    this.#refuseStrangers(request)
    const { pathname, searchParams } = new URL(url, `http://${HOST}`)
    if (pathname.startsWith('/v1/')) return this.#options.api.answer(method, pathname, searchParams, request, response)
    const file = this.#options.files.get(pathname)
    if (file === undefined || (method !== 'GET' && method !== 'HEAD')) throw new IchidoError('NOT_FOUND')
    response.writeHead(200, {
      'content-type': file.type,
      'cache-control': 'no-cache',
      'content-security-policy': POLICY,
      'x-content-type-options': 'nosniff',
      'referrer-policy': 'no-referrer',
    })
    response.end(method === 'GET' ? file.content : undefined)
  }

  /** Refuses sites that resolve their own name to our address (DNS rebinding), and forms that other sites send. */
  #refuseStrangers({ headers }: IncomingMessage): void {
    const names = [HOST, 'localhost'].map((name) => `${name}:${this.#port()}`)
    const { host = '', origin } = headers
    if (!names.includes(host)) throw new IchidoError('FORBIDDEN', `Host must be ${names.join(' or ')}`)
    if (origin !== undefined && !names.some((name) => origin === `http://${name}`)) {
      throw new IchidoError('FORBIDDEN', 'Pages of other sites may not call this')
    }
  }
}
