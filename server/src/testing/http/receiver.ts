import { once } from 'node:events'
import { createServer, type IncomingHttpHeaders, type ServerResponse } from 'node:http'
import { text } from 'node:stream/consumers'

/** A message as it arrived. */
export interface Arrived {
  id: string
  type: string
  jobId: string | null
  headers: IncomingHttpHeaders
  body: string
}

type Answer = number | ((response: ServerResponse) => void)

/** A receiver of webhooks on the loopback address, with a real HTTP server. */
export class Receiver {
  readonly #server = createServer((request, response) => void this.#hear(request, response))
  readonly arrived: Arrived[] = []
  /** How it answers a message; a number is a status. */
  answer: (message: Arrived) => Answer | Promise<Answer> = () => 204
  #port = 0

  static async open(): Promise<Receiver> {
    const receiver = new Receiver()
    await receiver.listen()
    return receiver
  }

  /** Listens, after `close` on the same port as before. */
  async listen(): Promise<void> {
    await once(this.#server.listen(this.#port, '127.0.0.1'), 'listening')
    const address = this.#server.address()
    this.#port = typeof address === 'object' && address !== null ? address.port : 0
  }

  get url(): string {
    return `http://127.0.0.1:${this.#port}/ichido`
  }

  async close(): Promise<void> {
    this.#server.closeAllConnections()
    if (this.#server.listening) await once(this.#server.close(), 'close')
  }

  async #hear(request: Parameters<Parameters<typeof createServer>[1] & object>[0], response: ServerResponse) {
    const body = await text(request)
    const { type, data } = JSON.parse(body) as { type: string; data: { job_id?: string } }
    const id = String(request.headers['webhook-id'])
    const message = { id, type, jobId: data.job_id ?? null, headers: request.headers, body }
    this.arrived.push(message)
    const answer = await this.answer(message)
    if (typeof answer === 'number') response.writeHead(answer).end()
    else answer(response)
  }
}
