import { once } from 'node:events'
import { createServer, type IncomingMessage, type Server, type ServerResponse } from 'node:http'
import { type AddressInfo, connect } from 'node:net'
import { buffer } from 'node:stream/consumers'
import { setTimeout as sleep } from 'node:timers/promises'

/** The ways in which a request or its answer can fail. */
export const TORMENTS = {
  /** The request and its connection are lost. */
  drop: ({ cut }: Exchange) => cut(),
  /** The connection breaks in the middle, and the server gets half of the request. */
  half: async ({ deliver, cut, bytes }: Exchange) => {
    await deliver(bytes.subarray(0, bytes.length / 2)).catch(() => {})
    cut()
  },
  /** The server processes the request, and its answer is lost. */
  dropAnswer: async ({ deliver, cut }: Exchange) => {
    await deliver()
    cut()
  },
  /** The connection is reset before, or after, the request was processed. */
  reset: ({ reset }: Exchange) => reset(),
  resetAnswer: async ({ deliver, reset }: Exchange) => {
    await deliver()
    reset()
  },
  /** Only half of the answer arrives. */
  halfAnswer: async ({ deliver, answer, reset }: Exchange) => {
    const whole = await deliver()
    answer(whole.subarray(0, whole.length / 2))
    reset()
  },
  /** No answer arrives, and the connection stays open. */
  hang: async ({ deliver }: Exchange) => void (await deliver()),
  /** The request arrives after the client has given up. */
  late: async ({ deliver, cut, pause }: Exchange) => {
    cut()
    await pause()
    await deliver()
  },
  /** The same bytes arrive twice: concurrently, or one after the other. */
  twice: async ({ deliver, answer }: Exchange) => {
    const [first] = await Promise.all([deliver(), deliver()])
    answer(first)
  },
  twiceLate: async ({ deliver, answer, pause }: Exchange) => {
    answer(await deliver())
    await pause()
    await deliver()
  },
  slow: async ({ deliver, answer, pause }: Exchange) => {
    await pause()
    const whole = await deliver()
    await pause()
    answer(whole)
  },
} satisfies Record<string, (exchange: Exchange) => unknown>

export type Torment = keyof typeof TORMENTS

interface Exchange {
  /** The request, as it is sent to the server. */
  bytes: Buffer
  /** Sends the request on a new connection. Resolves with the bytes of the answer. */
  deliver(bytes?: Buffer): Promise<Buffer>
  answer(bytes: Buffer): void
  cut(): void
  reset(): void
  /** Waits for up to `pauseMs`. */
  pause(): Promise<void>
}

export interface TormentOptions {
  random: () => number
  /** The share of requests that fail in some way, from 0 to 1. */
  share: number
  pauseMs: number
}

/** Stands between clients and an HTTP server, and counts what it did to each request. */
export class TormentProxy {
  readonly counts: Record<Torment | 'pass', number> = {
    pass: 0,
    drop: 0,
    half: 0,
    dropAnswer: 0,
    reset: 0,
    resetAnswer: 0,
    halfAnswer: 0,
    hang: 0,
    late: 0,
    twice: 0,
    twiceLate: 0,
    slow: 0,
  }
  readonly #server: Server
  readonly #running = new Set<Promise<void>>()

  private constructor(targetPort: number, options: TormentOptions) {
    this.#server = createServer((request, response) => {
      const one = this.#serve(targetPort, options, request, response)
        .catch(() => void request.socket.destroy())
        .finally(() => this.#running.delete(one))
      this.#running.add(one)
    })
  }

  static async before(url: string, options: TormentOptions): Promise<TormentProxy> {
    const proxy = new TormentProxy(Number(new URL(url).port), options)
    await once(proxy.#server.listen(0, '127.0.0.1'), 'listening')
    return proxy
  }

  get url(): string {
    return `http://127.0.0.1:${(this.#server.address() as AddressInfo).port}`
  }

  /** Resolves when every delayed request has arrived. */
  async settled(): Promise<void> {
    while (this.#running.size > 0) await Promise.all(this.#running)
  }

  close(): void {
    this.#server.close()
    this.#server.closeAllConnections()
  }

  async #serve(port: number, options: TormentOptions, request: IncomingMessage, response: ServerResponse) {
    const { random, share, pauseMs } = options
    const torments = Object.keys(TORMENTS) as Torment[]
    const what = random() < share ? torments[Math.floor(random() * torments.length)] : undefined
    this.counts[what ?? 'pass']++
    const { socket } = request
    const bytes = await bytesOf(request)
    const exchange: Exchange = {
      bytes,
      deliver: (part = bytes) => exchangeBytes(port, part, part.length < bytes.length),
      answer(whole) {
        response.detachSocket(socket)
        socket.end(whole)
      },
      cut: () => socket.destroy(),
      reset: () => socket.resetAndDestroy(),
      pause: () => sleep(random() * pauseMs),
    }
    if (what === undefined) exchange.answer(await exchange.deliver())
    else await TORMENTS[what](exchange)
  }
}

/** The request as bytes. Its connection serves only this request. */
async function bytesOf(request: IncomingMessage): Promise<Buffer> {
  const { method, url, rawHeaders } = request
  const lines = [`${method} ${url} HTTP/1.1`]
  for (let i = 0; i < rawHeaders.length; i += 2) {
    if (rawHeaders[i]?.toLowerCase() !== 'connection') lines.push(`${rawHeaders[i]}: ${rawHeaders[i + 1]}`)
  }
  return Buffer.concat([Buffer.from(`${lines.join('\r\n')}\r\nconnection: close\r\n\r\n`), await buffer(request)])
}

/** If only half of a request is sent, its connection is closed after it. */
async function exchangeBytes(port: number, bytes: Buffer, half: boolean): Promise<Buffer> {
  const socket = connect({ host: '127.0.0.1', port })
  socket.write(bytes)
  if (half) socket.end()
  return buffer(socket)
}
