import { once } from 'node:events'
import net from 'node:net'

export interface RawAnswer {
  status: number
  headers: ReadonlyMap<string, string>
  body: Buffer
}

const ANSWER_WITHIN_MS = 60_000
const HEAD_END = Buffer.from('\r\n\r\n')

/** Sends bytes that no HTTP library would send, over one connection as long as the server keeps it open. */
export class RawClient {
  readonly #port: number
  #socket: net.Socket | null = null

  constructor(port: number) {
    this.#port = port
  }

  /** Null means that the server closed the connection without an answer. With `cut` the client disconnects after the bytes. */
  async send(bytes: Buffer, { isHead = false, cut = false } = {}): Promise<RawAnswer | null> {
    const socket = await this.#connected()
    const reader = new AnswerReader(isHead)
    const answered = new Promise<RawAnswer | null>((resolve, reject) => {
      const timer = setTimeout(() => reject(new Error(`No answer within ${ANSWER_WITHIN_MS} ms`)), ANSWER_WITHIN_MS)
      const settle = (answer: RawAnswer | null) => {
        clearTimeout(timer)
        socket.removeAllListeners('data').removeAllListeners('close')
        resolve(answer)
      }
      socket.on('data', (chunk) => {
        const answer = reader.add(chunk)
        if (answer !== null) settle(answer)
      })
      socket.on('close', () => settle(reader.atEnd()))
    })
    socket.write(bytes)
    if (cut) socket.end()
    const answer = await answered
    if (cut || answer === null || !reader.isReusable) this.close()
    return answer
  }

  close(): void {
    this.#socket?.destroy()
    this.#socket = null
  }

  async #connected(): Promise<net.Socket> {
    if (this.#socket !== null && !this.#socket.destroyed && this.#socket.readyState === 'open') return this.#socket
    const socket = net.connect(this.#port, '127.0.0.1')
    await once(socket, 'connect')
    socket.setNoDelay(true)
    socket.on('error', () => {})
    this.#socket = socket
    return socket
  }
}

/** A reader for the part of HTTP/1.1 that this server uses. */
class AnswerReader {
  readonly #isHead: boolean
  #seen = Buffer.alloc(0)
  #head: { status: number; headers: Map<string, string>; bodyAt: number } | null = null

  constructor(isHead: boolean) {
    this.#isHead = isHead
  }

  get isReusable(): boolean {
    const headers = this.#head?.headers
    return headers?.get('connection') !== 'close' && !this.#isStream()
  }

  add(chunk: Buffer): RawAnswer | null {
    this.#seen = Buffer.concat([this.#seen, chunk])
    this.#head ??= this.#readHead()
    if (this.#head === null) return null
    const { status, headers, bodyAt } = this.#head
    if (status < 200) {
      this.#seen = this.#seen.subarray(bodyAt)
      this.#head = null
      return this.add(Buffer.alloc(0))
    }
    // A stream may have no end.
    if (this.#isHead || status === 204 || status === 304 || this.#isStream()) return this.#answer(Buffer.alloc(0))
    if (headers.get('transfer-encoding') === 'chunked') {
      const body = unchunk(this.#seen.subarray(bodyAt))
      return body === null ? null : this.#answer(body)
    }
    const length = Number(headers.get('content-length'))
    const body = this.#seen.subarray(bodyAt)
    return Number.isNaN(length) || body.length < length ? null : this.#answer(body.subarray(0, length))
  }

  /** A body without a length ends with its connection. */
  atEnd(): RawAnswer | null {
    return this.#head === null ? null : this.#answer(this.#seen.subarray(this.#head.bodyAt))
  }

  #isStream(): boolean {
    return this.#head?.headers.get('content-type')?.startsWith('text/event-stream') ?? false
  }

  #answer(body: Buffer): RawAnswer | null {
    return this.#head && { status: this.#head.status, headers: this.#head.headers, body }
  }

  #readHead() {
    const end = this.#seen.indexOf(HEAD_END)
    if (end === -1) return null
    const [first = '', ...lines] = this.#seen.subarray(0, end).toString('latin1').split('\r\n')
    const headers = new Map(
      lines.map((line) => [line.slice(0, line.indexOf(':')).toLowerCase(), line.slice(line.indexOf(':') + 1).trim()]),
    )
    return { status: Number(first.split(' ')[1]), headers, bodyAt: end + HEAD_END.length }
  }
}

/** Returns null until the last chunk has arrived. */
function unchunk(bytes: Buffer): Buffer | null {
  const parts: Buffer[] = []
  let at = 0
  for (;;) {
    const lineEnd = bytes.indexOf('\r\n', at)
    if (lineEnd === -1) return null
    const length = Number.parseInt(bytes.subarray(at, lineEnd).toString('latin1'), 16)
    const from = lineEnd + 2
    if (bytes.length < from + length + 2) return null
    if (length === 0) return Buffer.concat(parts)
    parts.push(bytes.subarray(from, from + length))
    at = from + length + 2
  }
}
