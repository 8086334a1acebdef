import { createHash } from 'node:crypto'
import { once } from 'node:events'
import { createServer, type IncomingMessage, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'
import { buffer } from 'node:stream/consumers'

/** A proxy that forwards every request, and loses the first answer to each. */
export interface DroppingProxy {
  url: string
  /** The paths whose answers were lost, without their ids. */
  dropped: string[]
  close(): void
}

export async function openDroppingProxy(target: string): Promise<DroppingProxy> {
  const seen = new Set<string>()
  const dropped: string[] = []
  const server = createServer(async (request, response) => {
    const { method = '', url = '', headers } = request
    const body = await buffer(request)
    const going = send(new URL(url, target), { method, headers })
    // When the client gives up, its forwarded request ends, too.
    response.on('close', () => going.destroy())
    going.end(body)
    const answered = (await once(going, 'response').catch(() => [])) as [IncomingMessage?]
    if (answered[0] === undefined) return void request.socket.destroy()
    const answer = answered[0]
    const content = await buffer(answer)
    const name = createHash('sha256').update(`${method} ${url}\n`).update(body).digest('hex')
    if (seen.has(name)) return void response.writeHead(answer.statusCode ?? 0, answer.headers).end(content)
    seen.add(name)
    dropped.push(url.replace(/\?.*/, '').replace(/[0-9a-f-]{36}(\.[\w-]+)?/, '…'))
    request.socket.destroy()
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    dropped,
    close() {
      server.close()
      server.closeAllConnections()
    },
  }
}
