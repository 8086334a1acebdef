import { once } from 'node:events'
import { connect, type Socket } from 'node:net'

const HEAD_END = '\r\n\r\n'

/**
 * A kept-alive connection with one request at a time, on a bare socket. The load generator shares the CPUs with the
 * measured server, and Node's own HTTP client would need as much CPU time as the server.
 */
export class HttpConnection {
  readonly #socket: Socket
  readonly #host: string
  #received: Buffer[] = []
  #size = 0
  /** The length of head and body; unknown until the head is complete. */
  #expected: number | null = null
  #settle: { resolve: (answer: string) => void; reject: (error: Error) => void } | null = null

  private constructor(socket: Socket, host: string) {
    this.#socket = socket
    this.#host = host
    socket.setNoDelay(true)
    socket.on('data', (chunk) => this.#take(chunk))
    socket.on('error', (error) => this.#fail(error))
    socket.on('close', () => this.#fail(new Error('The server closed the connection')))
  }

  static async open(url: string): Promise<HttpConnection> {
    const { hostname, port, host } = new URL(url)
    const socket = connect(Number(port), hostname)
    await once(socket, 'connect')
    return new HttpConnection(socket, host)
  }

  /** Resolves with the body of the answer. Any status but the expected one is an error. */
  post(path: string, body: string, expectedStatus: number): Promise<string> {
    const headers = `content-type: application/json\r\ncontent-length: ${Buffer.byteLength(body)}`
    return this.#ask(`POST ${path}`, headers, body, expectedStatus)
  }

  get(path: string, headers = 'accept: application/json'): Promise<string> {
    return this.#ask(`GET ${path}`, headers, '', 200)
  }

  async #ask(what: string, headers: string, body: string, expectedStatus: number): Promise<string> {
    if (this.#socket.destroyed) throw new Error('The server closed the connection')
    const head = `${what} HTTP/1.1\r\nhost: ${this.#host}\r\n${headers}`
    const answer = await new Promise<string>((resolve, reject) => {
      this.#settle = { resolve, reject }
      this.#socket.write(`${head}${HEAD_END}${body}`)
    })
    const found = answer.slice(answer.indexOf(HEAD_END) + HEAD_END.length)
    if (!answer.startsWith(`HTTP/1.1 ${expectedStatus} `))
      throw new Error(`Not ${expectedStatus}: ${answer.slice(0, 500)}`)
    return found
  }

  close(): void {
    this.#socket.destroy()
  }

  #take(chunk: Buffer): void {
    this.#received.push(chunk)
    this.#size += chunk.length
    this.#expected ??= this.#lengthOf(Buffer.concat(this.#received))
    if (this.#expected === null || this.#size < this.#expected) return
    const answer = Buffer.concat(this.#received).toString()
    this.#received = []
    this.#size = 0
    this.#expected = null
    const settle = this.#settle
    this.#settle = null
    settle?.resolve(answer)
  }

  #lengthOf(received: Buffer): number | null {
    const end = received.indexOf(HEAD_END)
    if (end === -1) return null
    const [, length] = /\r\ncontent-length: (\d+)/i.exec(received.subarray(0, end).toString('latin1')) ?? []
    if (length === undefined) {
      this.#socket.destroy(new Error('An answer without Content-Length'))
      return null
    }
    return end + HEAD_END.length + Number(length)
  }

  #fail(error: Error): void {
    const settle = this.#settle
    this.#settle = null
    settle?.reject(error)
  }
}
