import { once } from 'node:events'
import { type AddressInfo, connect, createServer, type Server, type Socket } from 'node:net'

/** The fate of a chunk. A rule that returns `hold` must handle the chunk itself, with the methods of the link. */
export type Verdict = 'pass' | 'hold' | 'cut'

export interface Chunk {
  /** To the server, or back. */
  direction: 'up' | 'down'
  data: Buffer
  link: Link
}

export type Rule = (chunk: Chunk) => Verdict | Promise<Verdict>

/** One connection through the proxy. */
export class Link {
  readonly #client: Socket
  readonly #server: Socket
  #vanished = false

  constructor(client: Socket, server: Socket) {
    this.#client = client
    this.#server = server
    client.on('close', () => this.#vanished || server.destroy())
    server.on('close', () => client.destroy())
  }

  cut(): void {
    this.#client.destroy()
    this.#server.destroy()
  }

  /** Cuts the client off without the server noticing. Returns the connection to the server, which the caller must close. */
  vanish(): Socket {
    this.#vanished = true
    this.#client.destroy()
    return this.#server
  }
}

/** Stands between a client and a TCP server, and applies its rule to each chunk. The chunks keep their order. */
export class TcpProxy {
  /** May change at any time. By default everything passes. */
  rule: Rule = () => 'pass'
  /** The port for new connections. A restarted server has another port. */
  targetPort: number
  readonly #server: Server
  readonly #links = new Set<Link>()

  private constructor(host: string, port: number) {
    this.targetPort = port
    this.#server = createServer((client) => this.#accept(client, connect({ host, port: this.targetPort })))
  }

  static async to(host: string, port: number): Promise<TcpProxy> {
    const proxy = new TcpProxy(host, port)
    proxy.#server.listen(0, '127.0.0.1')
    await once(proxy.#server, 'listening')
    return proxy
  }

  /** Returns the same address through a new proxy. */
  static async before(url: string): Promise<{ proxy: TcpProxy; url: string }> {
    const address = new URL(url)
    const proxy = await TcpProxy.to(address.hostname, Number(address.port))
    address.host = `127.0.0.1:${proxy.port}`
    return { proxy, url: address.href }
  }

  get port(): number {
    return (this.#server.address() as AddressInfo).port
  }

  cutAll(): void {
    for (const link of this.#links) link.cut()
  }

  async close(): Promise<void> {
    this.cutAll()
    this.#server.close()
    await once(this.#server, 'close')
  }

  #accept(client: Socket, server: Socket): void {
    const link = new Link(client, server)
    this.#links.add(link)
    this.#pump(link, 'up', client, server)
    this.#pump(link, 'down', server, client)
    let open = 2
    for (const socket of [client, server]) {
      socket.setNoDelay(true)
      socket.on('error', () => {})
      socket.on('close', () => --open === 0 && this.#links.delete(link))
    }
  }

  #pump(link: Link, direction: Chunk['direction'], from: Socket, to: Socket): void {
    let turn = Promise.resolve()
    from.on('data', (data) => {
      turn = turn.then(async () => {
        const verdict = await this.rule({ direction, data, link })
        if (verdict === 'pass') to.write(data)
        else if (verdict === 'cut') link.cut()
      })
    })
    from.on('end', () => {
      turn = turn.then(() => void to.end())
    })
  }
}
