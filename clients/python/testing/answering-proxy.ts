import { once } from 'node:events'
import { createServer, type IncomingMessage, request as send } from 'node:http'
import type { AddressInfo } from 'node:net'

export interface Answer {
  status: number
  /** The error code of the control plane. Without it the answer looks like that of another server. */
  code?: string
  retryAfter?: number
}

/** A proxy that answers some requests itself, and forwards the others. */
export async function openAnsweringProxy(target: string, answer: (call: string) => Answer | undefined) {
  const server = createServer(async (request, response) => {
    const { method = '', url = '', headers } = request
    const own = answer(`${method} ${url}`)
    if (own !== undefined) {
      const { status, code, retryAfter = 0 } = own
      request.resume()
      response.writeHead(status, { 'retry-after': String(retryAfter) })
      return void response.end(code && JSON.stringify({ error: { code, message: 'Not now' } }))
    }
    const going = send(new URL(url, target), { method, headers })
    // When the client gives up, its forwarded request ends, too.
    response.on('close', () => going.destroy())
    request.pipe(going)
    const [answered] = (await once(going, 'response').catch(() => [])) as [IncomingMessage?]
    if (answered === undefined) return void request.socket.destroy()
    answered.pipe(response.writeHead(answered.statusCode ?? 0, answered.headers))
  })
  await once(server.listen(0, '127.0.0.1'), 'listening')
  return {
    url: `http://127.0.0.1:${(server.address() as AddressInfo).port}`,
    close() {
      server.close()
      server.closeAllConnections()
    },
  }
}
