import { once } from 'node:events'
import { createServer, type IncomingMessage, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'

/** A failed request: it never arrives, or its answer is lost while the function runs. */
export type Mishap = 'refuse' | (() => Promise<void>)

export interface Gate {
  url: string
  /** The number of requests so far. */
  count: number
  /** One for each of the next requests, in order. Later requests succeed. */
  readonly mishaps: Mishap[]
  close(): Promise<void>
}

/** Stands between a client and a server that may be down for a while. Clients can also use it as their HTTP proxy. */
export async function openGate(upstream: () => Promise<string>): Promise<Gate> {
  const mishaps: Mishap[] = []
  const server = createServer(async (request, response) => {
    gate.count++
    const mishap = mishaps.shift()
    const body = await buffer(request)
    try {
      if (mishap === 'refuse') throw new Error('refused')
      const [answer, content] = await forward(await upstream(), request, body)
      if (mishap !== undefined) {
        await mishap()
        throw new Error('lost')
      }
      response.writeHead(answer.statusCode ?? 0, answer.headers).end(content)
    } catch {
      request.socket.destroy()
    }
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  const gate: Gate = {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    count: 0,
    mishaps,
    async close() {
      server.close()
      server.closeAllConnections()
    },
  }
  return gate
}

async function forward(to: string, { method, url, headers }: IncomingMessage, body: Buffer) {
  const { pathname, search } = new URL(url ?? '/', to)
  const going = send(new URL(pathname + search, to), { method, headers })
  going.end(body)
  const [answer] = (await once(going, 'response')) as [IncomingMessage]
  return [answer, await buffer(answer)] as const
}
